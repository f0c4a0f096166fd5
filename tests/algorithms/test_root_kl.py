"""Decentralised policy optimisation: the slope of the two penalties, and how their weights follow the KL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fake_context import FakeContext
from grouprl.algorithms.regularize.papers.root_kl import RootKL
from grouprl.algorithms.update.papers.adapted_penalties import AdaptedPenalties, followed
from grouprl.algorithms.update.transitions import Transitions
from small import f64, small


def slope(move: float, root: float, kl: float) -> float:
    """The slope of the penalty in log π, where log ρ is `move`."""
    batch = small([0.0], [1]).replace(past={"root_weight": f64([root]), "kl_weight": f64([kl])})
    logp_bt = (batch.need("old_bt", "the test") + move).requires_grad_()
    RootKL()(logp_bt, batch).loss_bt.sum().backward()
    assert logp_bt.grad is not None
    return float(logp_bt.grad)


@pytest.mark.parametrize("move", [0.1, 0.01, 0.001])
def test_near_the_old_policy_the_slope_of_the_kl_vanishes_and_that_of_its_root_stays(move: float) -> None:
    """k ≈ x²/2 for log ρ = x: its slope is about x, that of its root about 1/√2."""
    assert slope(move, 0.0, 1.0) == pytest.approx(move, rel=0.06)
    assert slope(move, 1.0, 0.0) == pytest.approx(0.5**0.5, rel=0.06)
    assert slope(-move, 1.0, 0.0) == pytest.approx(-(0.5**0.5), rel=0.06)


def test_at_the_old_policy_nothing_pulls() -> None:
    assert slope(0.0, 1.0, 1.0) == 0


@pytest.mark.parametrize(
    ("distance", "next_weight"),
    [(0.006, 0.5), (0.00667, 1.0), (0.01, 1.0), (0.015, 1.0), (0.0151, 2.0)],
)
def test_a_weight_is_halved_below_its_target_and_doubled_above(distance: float, next_weight: float) -> None:
    assert followed(1.0, distance, 0.01) == next_weight


def test_weights_stay_within_their_bounds() -> None:
    assert followed(1e-3, 0.0, 0.01) == 1e-3
    assert followed(1e3, 1.0, 0.01) == 1e3


def test_the_last_optimiser_step_moves_both_weights_and_the_next_rollout_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A KL of 0.02 is twice its target of 0.01: β₂ doubles. Its root, 0.141, is within 1.5 of 0.1: β₁ stays."""

    def steps(self: object, learner: object, prepared: object) -> Iterator[dict[str, float]]:
        yield {"kl_old": 0.5}
        yield {"kl_old": 0.02}

    monkeypatch.setattr(Transitions, "__call__", steps)
    part, context = AdaptedPenalties(target=0.01), FakeContext()
    assert len(list(part(SimpleNamespace(context=context), small([0.0])))) == 2  # type: ignore[arg-type]
    filled = part.fill(small([0.0]), None, context)  # type: ignore[arg-type]
    assert filled.past["root_weight"].tolist() == [1.0]
    assert filled.past["kl_weight"].tolist() == [2.0]


def test_a_run_moves_the_weights(tmp_path: Any) -> None:
    import grouprl

    grouprl.train(
        {
            "task": {"name": "env:grouprl.envs.builtin.squads:MatrixGame", "turns": 2},
            "model": {"name": "mlp", "settings": {"hidden": [4]}},
            "method": {"name": "dec_dpo", "size": 4},
            "steps": 2,
            "batch": {"prompts": 4, "group_size": 1},
            "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "train"]
    assert (rows[0]["kl_weight"], rows[1]["kl_weight"]) == (1.0, 0.5)
    assert 0 <= rows[1]["kl_old"] < 0.01
