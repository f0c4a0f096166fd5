"""Runs on built problems and on teams over arrays go on after a kill as if nothing had happened."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.training.loop import train

RUNS: dict[str, dict[str, Any]] = {
    "tours": {
        "task": {"name": "construct:tsp", "count": 5, "gap": True},
        "model": {"name": "pointer"},
        "method": {"base": "reinforce", "baseline": "group"},
    },
    "best tours": {
        "task": {"name": "solved:tsp", "count": 5, "state": "rest", "cut": True},
        "model": {"name": "quotient", "settings": {"width": 8, "layers": 1, "heads": 2}},
        "method": "sft",
        "batch": {"prompts": 3, "group_size": 1},
    },
    "a team": {
        "task": {"name": "env:grouprl.envs.builtin.squads:MatrixGame", "turns": 2, "config": {"parents": "all"}},
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "method": {"name": "ppo_control", "size": 16},
    },
    "agents that come and go": {
        "task": {"name": "env:grouprl.envs.builtin.squads:Crossing", "turns": 60},
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "method": {"name": "ppo_control", "size": 16},
    },
    "a team in its latent space": {
        "task": {"name": "env:grouprl.envs.builtin.squads:Crossing", "turns": 60, "config": {"team": True}},
        "model": {"name": "latent_team", "settings": {"width": 8}},
        "method": "mapo_lso",
    },
}
TIMES = ("seconds", "tokens_per_second", "memory")


def run(folder: Path, settings: dict[str, Any], *, resume: bool = False) -> list[dict[str, Any]]:
    """Train and return the records without times."""
    small = {
        "steps": 4,
        "batch": {"prompts": 3, "group_size": 3},
        "eval": {"every": 2, "prompts": 3, "final_prompts": 3},
    }
    config = parse_config({**small, **settings, "run": {"threads": 1, "checkpoint_every": 1, "keep": 4}})
    train(config, folder=folder, resume=resume, console=Console(file=io.StringIO()))
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{key: value for key, value in line.items() if not key.startswith(TIMES)} for line in lines]


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", RUNS[name])
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "whole", again)
    for step in (3, 4):
        shutil.rmtree(again / "checkpoints" / f"step-{step:06d}")
    assert run(again, RUNS[name], resume=True) == whole
    for path in (tmp_path / "whole" / "model").iterdir():
        assert (again / "model" / path.name).read_bytes() == path.read_bytes()
    assert len({line["loss"] for line in whole if line["phase"] == "train"}) > 1
