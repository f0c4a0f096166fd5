"""What docs/adapters.md and docs/agents.md show works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from grouprl.config.run import parse_config
from grouprl.envs.check import check_environment
from grouprl.tasks import load_task
from grouprl.tasks.registry import task_names

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_program_of_the_page_is_sound(tmp_path, monkeypatch):
    pytest.importorskip("openai", reason="openai is not installed: pip install 'grouprl[dev]'")
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'grouprl[serve]'")
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("agents.md", "python")
    (tmp_path / "my_agent.py").write_text(code)
    config = parse_config(yaml.safe_load(blocks("agents.md", "yaml")[0]))
    task = load_task(config.task)
    assert (task.max_turns, task.max_new_tokens) == (4, 8)
    report = check_environment(task.environment, lambda number: task.example("train", number), episodes=4)
    assert report.problems == ()


@pytest.mark.parametrize(("library", "task"), [("textarena", 0), ("pettingzoo", 1)])
def test_games_of_the_page_can_be_played(library, task):
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'grouprl[agents]'")
    named = parse_config(yaml.safe_load(blocks("adapters.md", "yaml")[task])).task
    assert named["name"].startswith(library)
    loaded = load_task(named)
    assert loaded.demonstration(loaded.example("train", 0), 0)


def test_every_adapter_has_a_paragraph():
    pages = "".join((DOCS / f"{page}.md").read_text("utf-8") for page in ("adapters", "agents", "environments"))
    for name in ("gym", "textarena", "pettingzoo", "openenv", "mcp", "program", "reasoning_gym"):
        assert any(each.startswith(f"{name}:") for each in task_names())
        assert f"{name}:" in pages
