"""Findings on preferences in real runs: provoked where there is something to find, silent where all is well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.monitor.health import examine
from grouprl.monitor.history import HealthFacts
from grouprl.training.loop import train
from judge_server import judging, material, scores

SMALL = {"name": "tiny", "tiny": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}}
PREFERENCES = {"overoptimisation", "length_exploitation", "reference_drift", "likelihood_displacement"}
PAIRS: dict[str, Any] = {
    "method": "dpo",
    "batch": {"prompts": 16, "group_size": 2, "minibatches": 2},
    "warmup": {"steps": 40, "batch": 16, "lr": 1e-2},
    "optim": {"lr": 1e-2, "schedule": "constant"},
    "steps": 10,
}
SCORED: dict[str, Any] = {
    "method": "bradley_terry",
    "task": "preferences",
    "batch": {"prompts": 32, "group_size": 2},
    "optim": {"lr": 3e-3, "schedule": "constant"},
    "steps": 120,
}
PAID: dict[str, Any] = {
    "task": "words",
    "method": {"base": "grpo", "kl_coef": 0.001},
    "batch": {"prompts": 8, "group_size": 8},
    "warmup": {"steps": 60, "batch": 16, "lr": 1e-2},
    "optim": {"lr": 3e-3, "schedule": "constant"},
    "steps": 40,
}


def ran(folder: Path, settings: dict[str, Any], **changes: Any) -> Path:
    common = {
        "model": SMALL,
        "eval": {"every": 0, "final_prompts": 64},
        "run": {"threads": 1, "check_model": False, "rollouts_every": 0},
    }
    return train(parse_config(common | settings | changes), folder=folder, console=Console(quiet=True)).folder


def said(run: Path) -> dict[str, dict[str, Any]]:
    """What the run's own health report says of preferences."""
    found = json.loads((run / "health.json").read_text())
    return {each["code"]: each for each in found if each["code"] in PREFERENCES}


def lines(run: Path, phase: str) -> list[dict[str, Any]]:
    found = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in found if line["phase"] == phase]


def test_a_reward_model_that_knows_little_is_over_optimised(tmp_path: Path) -> None:
    model = ran(tmp_path / "model", SCORED)
    run = ran(tmp_path / "run", PAID, reward={"model": str(model), "gold": "task"})
    finding = said(run)["overoptimisation"]
    assert finding["severity"] == "alarm"
    assert "per token to the reference" in finding["text"]
    steps = lines(run, "train")
    begun, ended = steps[:5], steps[-5:]
    assert mean(ended, "reward_mean") > mean(begun, "reward_mean")
    assert mean(ended, "reward/gold") < mean(begun, "reward/gold")
    assert mean(ended, "kl_ref") > mean(begun, "kl_ref")


def mean(steps: list[dict[str, Any]], name: str) -> float:
    return sum(step[name] for step in steps) / len(steps)


def truly(request: dict[str, Any]) -> str:
    """A judge that pays what a word is worth: its share of the letters that the prompt asks for."""
    told = material(request)
    asked = json.dumps([told.get("shared"), told["trajectories"][0].get("prompt")])
    wanted = asked.split(">")[0][-3:]
    return scores(request, lambda text: sum(c in wanted for c in text) / max(1, len(text)))


def test_a_judge_that_tells_the_truth_is_not(tmp_path: Path) -> None:
    with judging(truly) as (url, _):
        run = ran(tmp_path / "run", PAID, reward={"judge": {"url": url}, "gold": "task"}, steps=80)
    steps = lines(run, "train")
    assert mean(steps, "reward_mean") == pytest.approx(mean(steps, "reward/gold"), abs=1e-6)
    assert mean(steps[-5:], "reward/gold") > mean(steps[:5], "reward/gold") + 0.1
    assert not said(run)


@pytest.mark.parametrize("longest", [6, 12])
def test_pairs_that_prefer_length_are_named_where_samples_grow_into_their_room(longest: int, tmp_path: Path) -> None:
    run = ran(tmp_path, PAIRS, task={"name": "preferences", "length_bias": 10.0, "longest": longest})
    assert "length may stand for quality" in said(run)["length_exploitation"]["text"]
    first, last = (line["eval/length_mean"] for line in lines(run, "eval"))
    if longest == 6:  # seven tokens leave no room to grow by half
        assert last < 1.5 * first


def test_a_rate_too_high_for_too_long_drifts_and_displaces(tmp_path: Path) -> None:
    found = said(ran(tmp_path, PAIRS, task={"name": "preferences", "length_bias": 10.0}, steps=30))
    assert {"reference_drift", "likelihood_displacement"} <= set(found)
    assert "lower optim.lr" in found["reference_drift"]["remedy"]


@pytest.mark.parametrize("task", [{"name": "preferences"}, {"name": "preferences", "longest": 12}])
def test_a_run_on_pairs_at_a_fitting_rate_is_healthy(task: dict[str, Any], tmp_path: Path) -> None:
    run = ran(tmp_path, PAIRS, task=task, optim={"lr": 1e-3, "schedule": "constant"}, steps=40)
    assert not said(run)
    steps = lines(run, "train")
    assert mean(steps[-10:], "pair_margin") > 0


@pytest.mark.parametrize(
    ("first", "last", "limit", "grew"),
    [
        (100, 149, 0, False),
        (100, 150, 0, True),
        (100, 149, 4096, False),
        (100, 150, 4096, True),
        (200, 228, 256, True),
        (200, 227, 256, False),
        (250, 256, 256, False),
        (256, 256, 256, False),
    ],
)
def test_growth_counts_by_half_or_by_half_of_the_room(first: float, last: float, limit: int, grew: bool) -> None:
    records: list[dict[str, Any]] = [
        {"phase": "train", "step": n, "chosen_length": 12.0, "rejected_length": 10.0} for n in range(1, 21)
    ]
    records += [{"phase": "eval", "step": n, "eval/length_mean": x} for n, x in ((0, first), (20, last))]
    found = {each.code for each in examine(records, HealthFacts(max_tokens=limit))}
    assert ("length_exploitation" in found) is grew
