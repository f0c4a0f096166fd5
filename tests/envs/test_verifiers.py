"""Environments of verifiers, played beside the trainer by what docs/adapters.md shows.

verifiers pins what this package needs otherwise, so it is looked for in a Python of its own: GROUPRL_VERIFIERS_PYTHON.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from chat_policies import chatting
from grouprl.config.run import parse_config
from grouprl.rollout.episodes import Start, play
from grouprl.tasks import load_task
from grouprl.train.loop import train

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'grouprl[serve]'")
OTHER = os.environ.get("GROUPRL_VERIFIERS_PYTHON", "")
PAGE = (
    (Path(__file__).parents[2] / "docs" / "adapters.md")
    .read_text(encoding="utf-8")
    .partition("## verifiers")[2]
    .partition("\n## ")[0]
)
SIDE, PLAY = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(CONFIG,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)

needs_verifiers = pytest.mark.skipif(not OTHER, reason="GROUPRL_VERIFIERS_PYTHON names no Python that has verifiers")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the page shows, and a port for the side."""
    (tmp_path / "side.py").write_text(SIDE)
    (tmp_path / "play.py").write_text(PLAY)
    rows = (json.dumps({"prompt": str(i), "answer": ""}) for i in range(8))
    (tmp_path / "tasks.jsonl").write_text("\n".join(rows) + "\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("SIDE", f"http://127.0.0.1:{free.getsockname()[1]}/")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def side(files: Path) -> Iterator[None]:
    """The environment, played in its own Python."""
    seat = {"harness": {"id": "side"}, "runtime": {"type": "subprocess"}}
    settings = json.dumps({"taskset": {"id": "verifiers_letters"}, "agent": seat})
    port = os.environ["SIDE"].strip("/").rpartition(":")[2]
    path = os.pathsep.join([str(files), str(Path(__file__).parents[1] / "support")])
    process = subprocess.Popen(
        [OTHER, "side.py", settings, port],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(line == "ready\n" for line in lines), "it did not begin"
        yield
    finally:
        process.kill()
        process.wait()


def config() -> dict:
    return yaml.safe_load(CONFIG)


def test_what_the_page_shows_is_a_task(files: Path) -> None:
    compile(SIDE, "side.py", "exec")
    task = load_task(config()["task"])
    assert (task.max_turns, task.max_new_tokens, task.size("train") + task.size("eval")) == (2, 4, 8)
    assert task.reward("0.5") == 0.5


@needs_verifiers
def test_an_episode_is_the_environments(side: None) -> None:
    task = load_task(config()["task"])
    requested = [Start(task.example("train", 0), i, action_seed=i) for i in range(4)]
    found = play(chatting(), task.environment, requested, max_turns=2, max_new_tokens=4)
    assert not found.failures
    assert found.turns_b.tolist() == [2, 2, 2, 2]
    for record, verdict in zip(found.records, found.verdicts, strict=True):
        replies = [turn.action for turn in record.turns]
        assert verdict["outcome"] == sum(letter in reply for letter, reply in zip("ab", replies, strict=True)) / 2


@needs_verifiers
def test_an_unchanged_environment_is_trained(side: None, tmp_path: Path) -> None:
    plan = config()
    plan["task"]["characters"] = "ab?xyz"
    plan |= {
        "steps": 12,
        "warmup": {"steps": 0},
        "optim": {"lr": 1e-2, "warmup_steps": 1},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "eval": {"every": 0, "final_prompts": 1, "samples": 1},
        "run": {"threads": 1},
    }
    folder = train(parse_config(plan), folder=tmp_path / "run", console=Console(file=io.StringIO())).folder
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward_mean"] for line in lines if line["phase"] == "train"]
    assert len(rewards) == 12
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
