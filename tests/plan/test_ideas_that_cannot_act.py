"""What the plan says of methods whose idea cannot act in the task that they are given, and of steps on actions."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from grouprl.cli.plan import _updates
from grouprl.config.run import Config, load_config, parse_config
from grouprl.papers.paper_list import listings
from grouprl.plan.plan import Plan, plan
from grouprl.training.loop import train

TOURS = ("task=construct:tsp", "task.strategies=4", "model.name=pointer", "warmup.steps=0", "batch.minibatches=1")
STORE = ("task=env:grouprl.envs.construction.inventory:Inventory", "task.turns=10", "task.own_luck=true")
ARRAYS = ("model.name=mlp", "warmup.steps=0", "batch.minibatches=1")
CASES = "task.grid.penalty=[4,1,9]"


def planned(method: str, *changes: str) -> Plan:
    return plan(load_config("addition", [f"method={method}", *changes, "model.device=cpu"]))


def said(found: Plan, word: str) -> list[str]:
    return [str(line) for line in (*found.idle, *found.refusals) if word in str(line)]


def test_levels_by_regret_are_refused_where_nothing_states_what_an_antagonist_is_paid() -> None:
    assert "the component '#best'" in said(planned("groove", "data.prompts=64"), "#best")[0]
    assert not planned("groove", "data.prompts=64", "method.score=spread").refusals


@pytest.mark.parametrize("method", ["iwocs", "drpg"])
def test_a_search_for_the_worst_setting_says_when_there_are_no_settings(method: str) -> None:
    where = "finds no worst setting of an environment"
    assert (
        "each of the 64 prompts is a case" in said(planned(method, "data.prompts=64", "batch.minibatches=1"), where)[0]
    )
    assert said(planned(method, *STORE, *ARRAYS, "data.prompts=3"), where)
    assert not said(planned(method, *STORE, *ARRAYS, CASES, "data.prompts=3"), "worst")


@pytest.mark.parametrize(("prompts", "told"), [(2, "the others are never played"), (4, "differ by their seed")])
def test_other_numbers_of_prompts_than_settings_are_told(prompts: int, told: str) -> None:
    found = planned("iwocs", *STORE, *ARRAYS, CASES, f"data.prompts={prompts}")
    (line,) = said(found, f"has {prompts} cases, and task.grid has 3 combinations")
    assert told in line
    assert "Set data.prompts to 3" in line


def test_strategies_by_number_leave_nothing_to_search_between_them() -> None:
    (line,) = said(planned("compass", *TOURS), "has no latent space")
    assert "4 strategies by their numbers" in line
    assert not said(planned("compass", *TOURS, "task.latent=4"), "latent")
    assert not said(planned("poppy", *TOURS), "latent")


def test_scales_that_move_over_the_run_say_when_it_has_one_step() -> None:
    assert said(planned("horizon_drift", "steps=1"), "they stay at alpha and beta")
    assert not said(planned("horizon_drift", "steps=2"), "they stay at alpha and beta")


def on_actions(**batch: int) -> Config:
    return parse_config(
        {
            "task": {"name": "env:grouprl.envs.construction.coverage:CoverageWalk", "turns": 10},
            "model": {"name": "mlp", "settings": {"hidden": [8]}},
            "method": {"name": "ppo_control", "size": 64},
            "steps": 2,
            "batch": {"prompts": 32, "group_size": 1, **batch},
            "optim": {"lr": 0.3, "schedule": "constant"},
            "eval": {"every": 0, "final_prompts": 2},
            "run": {"threads": 1},
        }
    )


def test_a_clip_on_sets_of_actions_can_act_in_one_pass_and_does(tmp_path: Path) -> None:
    """32 episodes of 10 actions are 5 sets of 64: after the first step the ratio is not 1."""
    found = plan(on_actions(epochs=1))
    assert not said(found, "cannot act")
    assert not found.batch.whole_rows
    assert (found.batch.updates_per_rollout, found.batch.updates) == (5, 10)
    assert dict(_updates(found.batch)) == {
        "updates": "≤ 5 sets of actions × 1 epoch = ≤ 5 per rollout; × 2 rollouts = ≤ 10 in all"
    }
    assert "at most 5 optimiser steps each" in "".join(found.short())
    train(on_actions(epochs=1), folder=tmp_path / "run", console=Console(file=io.StringIO()))
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert max(row["clip_fraction"] for row in rows if row["phase"] == "train") > 0


def test_a_single_set_of_actions_leaves_the_clip_nothing_to_do() -> None:
    """11 episodes of 10 actions are one set of at least 64."""
    found = plan(on_actions(prompts=11, epochs=1))
    assert said(found, "cannot act")
    assert found.batch.updates_per_rollout == 1


def test_minibatches_are_said_to_have_no_effect_on_sets_of_actions() -> None:
    assert said(plan(on_actions(minibatches=4)), "batch.minibatches has no effect")
    assert not said(plan(on_actions()), "batch.minibatches")


def test_the_rows_of_papers_play_the_grid_of_colours_to_its_end() -> None:
    """12 rounds of two agents: a limit before that ends episodes which show no last observations, and the run."""
    rows = [paper.settings for paper in listings() if any("squads:ColorGrid" in each for each in paper.settings)]
    assert len(rows) == 2
    assert all("task.turns=24" in each for each in rows)
