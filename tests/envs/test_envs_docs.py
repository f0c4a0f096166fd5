"""What docs/environments.md shows works."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.tasks import load_task

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    (tmp_path / "nim.py").write_text(blocks("python")[0])
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("nim", None)


def test_the_class_has_thirty_lines_and_breaks_no_rule():
    lines = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(lines) <= 30
    done = CliRunner().invoke(app, ["check-env", "nim.py:Nim"])
    assert (done.exit_code, "nim.py:Nim: no problems" in done.stdout) == (0, True)
    assert CliRunner().invoke(app, ["check-env", "env:nim.py:Nim"]).exit_code == 0


def test_the_configurations_name_tasks_that_can_be_played():
    own, gym = (parse_config(yaml.safe_load(block)) for block in blocks("yaml"))
    for config, turns in ((own, 8), (gym, 20)):
        task = load_task(config.task if isinstance(config.task, (str, dict)) else config.task.model_dump())
        example = task.example("train", 0)
        actions = task.demonstration(example, 0)
        assert task.max_turns == turns
        assert 1 <= len(actions.splitlines()) <= turns
        assert set(example.prompt + actions.replace("\n", "")) <= set(task.alphabet)
        assert isinstance(task.reward(actions, **example.columns), float)


def test_the_table_names_the_built_in_environments():
    named = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    worlds = ["adventure", "screen", "sql", "search", "signals", "team", "propose", "host", "wordle", "faithful"]
    assert named[:15] == ["guess", "keys", "tictactoe", "calculator", *worlds, "subgoals"]
    assert all(load_task(name).environment() is not None for name in named)
