"""Methods with credit over turns in real runs of episodes: they train, and a run broken off goes on the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import toy_envs
from test_episodes_runs import launch, records

ASK: dict[str, Any] = {"task": f"{toy_envs.__file__}:AskTask"}
GUESS: dict[str, Any] = {"task": {"name": "guess", "numbers": 3}, "warmup": {"steps": 20, "batch": 16, "lr": 1e-2}}
SMALL = {"eval": {"final_questions": 4, "questions": 4, "samples": 1}, "batch": {"prompts": 8, "group": 4}}
RUNS = [
    ("gigpo", ASK),
    ("igpo", GUESS),
    ("salt", ASK),
    ("empg", ASK),
    ("ui_s1", ASK),
    ("rank_grpo", ASK),
]


@pytest.mark.parametrize(("method", "where"), RUNS, ids=[name for name, _ in RUNS])
def test_trains_on_episodes(tmp_path: Path, method: str, where: dict[str, Any]) -> None:
    lines = records(launch(tmp_path / "run", method=method, **where, **SMALL), "train")
    assert len(lines) == 2
    assert all(math.isfinite(line["loss"]) for line in lines)
    assert lines[-1]["turns_mean"] > 1
    assert max(line["grad_norm"] for line in lines) > 0
