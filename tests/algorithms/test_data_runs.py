"""Real tiny runs of the methods that choose prompts, numbers of completions, budgets and temperatures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from grouprl import InputError
from killed_runs import assert_goes_on_equally
from single_runs import launch, records, run_config

LEVELS = ("dump", "easy_to_hard")
METHODS: dict[str, Any] = {
    "dots": {"name": "dots", "reference": 4},
    "dump": {"name": "dump", "by": "level"},
    "srpo_history": "srpo_history",
    "knapsack_rl": {"name": "knapsack_rl", "high": 8},
    "gvm_raft": {"name": "gvm_raft", "probe": 2},
    "self": "self",
    "palu": "palu",
    "xrpo": "xrpo",
    "easy_to_hard": {"base": "grpo", "curriculum": "easy_to_hard"},
    "hard_stage": {"base": "grpo", "curriculum": "hard_stage"},
}


def groups_of(folder: Path, step: int) -> dict[int, int]:
    """Number of completions of each group sampled in a step."""
    rows = pq.read_table(folder / "rollouts" / f"step-{step:06d}.parquet").to_pylist()
    found: dict[int, int] = {}
    for row in rows:
        found[row["group"]] = found.get(row["group"], 0) + 1
    return found


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs(tmp_path: Path, name: str) -> None:
    task = {"name": "reverse", "length": 4, "shortest": 1} if name in LEVELS else {"name": "addition", "digits": 1}
    data = {"prompts": 4 if name == "knapsack_rl" else 12}
    warmup = {"steps": 150 if name == "knapsack_rl" else 30, "batch": 32, "lr": 1e-2}
    changes: dict[str, Any] = {"method": METHODS[name], "task": task, "data": data, "warmup": warmup, "steps": 3}
    folder = launch(tmp_path / "run", **changes).folder
    steps = records(folder, "train")
    assert len(steps) == 3
    assert all(math.isfinite(record["loss"]) for record in steps)
    sizes = [groups_of(folder, step) for step in (1, 2, 3)]
    if name == "knapsack_rl":
        assert all(sum(s.values()) == 16 and min(s.values()) >= 2 for s in sizes)
        assert len({n for s in sizes[1:] for n in s.values()}) > 1
    if name == "xrpo":
        assert all(sum(s.values()) == 32 and len(s) == 4 for s in sizes)
    if name == "gvm_raft":
        assert all(sum(s.values()) == 16 for s in sizes)
        assert [record["completions_probed"] for record in steps] == [8, 8, 8]
    if name == "self":
        assert all(len(s) == 4 - 4 * r["prompts_skipped"] for s, r in zip(sizes, steps, strict=True))
    if name == "dots":
        assert [record.get("completions_probed", 0) for record in steps] == [16, 0, 16]


@pytest.mark.parametrize("name", ["vas", "dots", "vade", "dump", "srpo_history", "knapsack_rl", "palu"])
def test_prompts_that_never_end_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"never end\. Set data\.prompts, e\.g\. 512"):
        launch(tmp_path / "run", method=name)


def test_a_run_survives_steps_without_a_prompt(tmp_path: Path) -> None:
    method = {"name": "self", "solved": -1.0}
    folder = launch(tmp_path / "run", method=method, data={"prompts": 12}).folder
    steps = records(folder, "train")
    assert [record["prompts_skipped"] for record in steps] == [1.0, 1.0]
    assert [record["grad_norm"] for record in steps] == [0.0, 0.0]
    assert [record["rows_trained"] for record in steps] == [0.0, 0.0]


def test_metrics_of_a_refilled_step_are_those_of_all_its_rounds(tmp_path: Path) -> None:
    refill = {"part": "dynamic_sampling", "max_rounds": 3}
    method = {"base": "grpo", "allocation": {"part": "knapsack", "high": 8}, "refill": refill}
    folder = launch(tmp_path / "run", method=method, data={"prompts": 12}, steps=3, warmup={"steps": 60}).folder
    steps = records(folder, "train")
    assert max(record["refill_rounds"] for record in steps) > 1
    for step, record in enumerate(steps, start=1):
        sizes = groups_of(folder, step).values()
        assert (record["completions_least"], record["completions_most"]) == (min(sizes), max(sizes))


VAS = {"name": "vas", "refresh_every": 2, "probe": 2}
TOGETHER = {
    "base": "grpo",
    "curriculum": "variance_sampling",
    "allocation": "knapsack",
    "sampling": "length_budget",
    "augment": ["uncertainty_rounds"],
}


SELECTED = {"base": "grpo", "curriculum": {"part": "reward_selection", "keep": 5}}


@pytest.mark.parametrize("method", ["vade", VAS, METHODS["dots"], "hapo", TOGETHER, SELECTED])
def test_killed_and_resumed_ends_equally(tmp_path: Path, method: Any) -> None:
    """Going on from the third of six steps, in a folder that knows of all six, as a killed run's may."""
    run = {"checkpoint_every": 3, "keep": 9, "threads": 1}
    settings = {"method": method, "steps": 6, "data": {"prompts": 6}, "run": run, "warmup": {"steps": 60}}
    whole = launch(tmp_path / "whole", **settings).folder
    assert_goes_on_equally(whole, tmp_path / "copy", run_config(**settings))
