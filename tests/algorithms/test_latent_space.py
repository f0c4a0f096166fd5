"""Losses in a team's latent space: sums of errors by hand, their slopes, and the base without them, to the last bit."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import grouprl
from grouprl.algorithms.regularize.papers.latent_space import SelfPrediction, TeamDynamics
from grouprl.config.run import parse_config
from grouprl.core.batch import Batch
from grouprl.training.loop import train
from small import f64, small

OUTPUTS = ("latent_error", "masked_error", "foreseen_reward", "ahead_error")


def batch_of(dtype: torch.dtype = torch.float64) -> tuple[Batch, dict[str, torch.Tensor]]:
    """Two rows of two and one actions, and outputs, with rubbish beyond the rows' ends."""
    rows = {
        "latent_error": [[0.5, 0.25], [1.0, 9.0]],
        "masked_error": [[0.1, 0.2], [0.3, 9.0]],
        "foreseen_reward": [[1.0, -1.0], [0.5, 9.0]],
        "ahead_error": [[2.0, 1.0], [0.5, 9.0]],
    }
    given = {name: f64(x).to(dtype).requires_grad_() for name, x in rows.items()}
    batch = small([3.0, 0.0], [2, 1]).replace(
        turn_bt=torch.tensor([[0, 2], [1, -1]]), turn_reward_bs=f64([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    )
    return batch.replace(stats=dict(given)), given


def test_dynamics_add_up_the_errors_and_the_reward_is_that_of_the_action_s_turn() -> None:
    batch, given = batch_of()
    loss = TeamDynamics(coef=2.0)(batch.old_bt, batch)
    expected = [[2 * (0.5 + 0.1 + 1.0), 2 * (0.25 + 0.2 + 4.0)], [2 * (1.0 + 0.3 + 0.25), 0.0]]
    torch.testing.assert_close(loss.loss_bt.tolist(), expected)
    torch.testing.assert_close(loss.metrics["reward_error"].tolist(), [[1.0, 4.0], [0.25, 0.0]])
    slopes = torch.autograd.grad(loss.loss_bt.sum(), [given[name] for name in OUTPUTS[:3]])
    assert slopes[0].tolist() == slopes[1].tolist() == [[2.0, 2.0], [2.0, 0.0]]
    assert slopes[2].tolist() == [[-4.0, -8.0], [2.0, 0.0]]


def test_self_prediction_is_its_distance_on_actions_that_count() -> None:
    batch, given = batch_of()
    loss = SelfPrediction(coef=0.5)(batch.old_bt, batch)
    torch.testing.assert_close(loss.loss_bt.tolist(), [[1.0, 0.5], [0.25, 0.0]])
    (slope_bt,) = torch.autograd.grad(loss.loss_bt.sum(), [given["ahead_error"]])
    assert slope_bt.tolist() == [[0.5, 0.5], [0.5, 0.0]]


def test_the_losses_have_the_type_of_the_outputs() -> None:
    batch, _ = batch_of(torch.float32)
    for part in (TeamDynamics(), SelfPrediction()):
        assert part(batch.old_bt.float(), batch).loss_bt.dtype == torch.float32


@pytest.mark.parametrize("part", [TeamDynamics, SelfPrediction])
def test_a_weight_of_zero_is_called_idle(part: Any) -> None:
    from grouprl.algorithms.part import RunFacts

    assert part(coef=0.0).idle(RunFacts())
    assert not part().idle(RunFacts())


def test_a_weight_of_zero_takes_its_part_out() -> None:
    def names(**settings: float) -> list[str]:
        return [part.name for part in grouprl.method("mapo_lso", **settings).regularize]

    assert names() == ["entropy_bonus", "team_dynamics", "self_prediction"]
    assert names(dynamics=0.0) == ["entropy_bonus", "self_prediction"]
    assert names(prediction=0.0, entropy_coef=0.0) == ["team_dynamics"]


def run(folder: Path, method: Any) -> list[dict[str, Any]]:
    config = {
        "task": {"name": "env:grouprl.envs.builtin.squads:Crossing", "turns": 60, "config": {"team": True}},
        "model": {"name": "latent_team", "settings": {"width": 8}},
        "method": method,
        "steps": 2,
        "batch": {"prompts": 3, "group_size": 1, "minibatches": 2},
        "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
        "run": {"threads": 1},
    }
    train(parse_config(config), folder=folder, console=Console(file=io.StringIO()))
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_with_weights_of_zero_a_run_is_that_of_its_base_to_the_last_bit(tmp_path: Path) -> None:
    """And a run that foresees ends with other weights."""
    run(tmp_path / "base", {"base": "ippo", "update": None})
    run(tmp_path / "zero", {"name": "mapo_lso", "dynamics": 0.0, "prediction": 0.0})
    whole = run(tmp_path / "whole", "mapo_lso")
    base, zero, other = (
        (tmp_path / name / "model" / "policy.safetensors").read_bytes() for name in ("base", "zero", "whole")
    )
    assert base == zero
    assert base != other
    names = ("latent_error", "masked_error", "reward_error", "ahead_error")
    assert all(line[name] > 0 for line in whole if line["phase"] == "train" for name in names)
