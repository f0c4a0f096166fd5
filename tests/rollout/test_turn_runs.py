"""Methods with credit over turns in real runs of episodes: they train, and a run broken off goes on the same."""

from __future__ import annotations

import io
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import toy_envs
from episode_runs import launch, records, run_config
from grouprl.config.run import parse_config
from grouprl.training.loop import train
from killed_runs import evidence

ASK: dict[str, Any] = {"task": f"{toy_envs.__file__}:AskTask"}
GUESS: dict[str, Any] = {"task": {"name": "guess", "numbers": 3}, "warmup": {"steps": 20, "batch": 16, "lr": 1e-2}}
KEYS: dict[str, Any] = {**GUESS, "task": "keys"}
DIAGNOSE: dict[str, Any] = {**GUESS, "task": "diagnose"}
SMALL = {"eval": {"final_prompts": 4, "prompts": 4, "samples": 1}, "batch": {"prompts": 8, "group_size": 4}}
RUNS = [
    ("gigpo", ASK),
    ("igpo", GUESS),
    ("salt", ASK),
    ("empg", ASK),
    ("ui_s1", ASK),
    ("rank_grpo", ASK),
    ({"name": "g_ra", "outcome": "correct"}, ASK),
    ("otc", ASK),
    ("ufo", ASK),
    ({"name": "spa_rl", "steps": 2}, ASK),
    ("multi_turn_ppo", ASK),
    ({"name": "multi_turn_ppo", "most": 2}, ASK),
    ("promed", ASK),
    ("st_ppo", ASK),
    ("rae", ASK),
    ("thor", ASK),
    ({"name": "arpo_branch", "credit": "hard", "chance": 1.0}, ASK),
    ("duration_aware", ASK),
    ("dmpo", ASK),
    ("sdpo_segment", ASK),
    ({"name": "text2grad", "feedback": "grouprl.envs.builtin.key_door:critique"}, KEYS),
    ("ui_s1", {**KEYS, "task": {"name": "keys", "reward": "expert"}}),
    ("promed", DIAGNOSE),
    ("duration_aware", DIAGNOSE),
    ("rank_grpo", {**DIAGNOSE, "task": "shortlist"}),
    ("mt_grpo", {**KEYS, "task": {"name": "keys", "reward": "carl"}}),
]


@pytest.mark.parametrize(("method", "where"), RUNS, ids=[str(name) for name, _ in RUNS])
def test_trains_on_episodes(tmp_path: Path, method: Any, where: dict[str, Any]) -> None:
    lines = records(launch(tmp_path / "run", method=method, **where, **SMALL), "train")
    assert len(lines) == 2
    assert all(math.isfinite(line["loss"]) for line in lines)
    assert lines[-1]["turns_mean"] > 1
    assert max(line["grad_norm"] for line in lines) > 0


@pytest.mark.parametrize("method", [{"name": "spa_rl", "steps": 2}, "otc", "rae"], ids=str)
def test_what_is_remembered_lies_in_the_checkpoint(tmp_path: Path, method: Any) -> None:
    """Models of progress, the fewest calls, baselines: going on from the second of four steps ends the same."""
    run = {"checkpoint_every": 2, "keep": 9, "threads": 1}
    settings = {"method": method, **ASK, **SMALL, "steps": 4, "data": {"prompts": 8}, "run": run}
    whole = launch(tmp_path / "whole", **settings)
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    shutil.rmtree(sorted((copy / "checkpoints").glob("step-*"))[-1])
    train(parse_config(run_config(**settings)), folder=copy, resume=True, console=Console(file=io.StringIO()))
    assert evidence(copy) == evidence(whole)
