"""Drifts in place of a clip: the discovered one, one that tightens over the run, and weighted features of both."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from grouprl import Batch, InputError
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.papers.drift import DiscoveredDrift, FeatureDrift, HorizonDrift, features
from grouprl.algorithms.objective.ratio import held
from grouprl.algorithms.part import RunFacts
from grouprl.methods.compose import compose

LOGS, ADVS = [-1.5, -0.3, 0.0, 0.2, 1.1] * 2, [0.8] * 5 + [-1.3] * 5


def moved(step: int | None = None, steps: int | None = None) -> Batch:
    """One row of tokens that were pushed up or down, with advantages of both signs."""
    old_bt = torch.full((1, len(LOGS)), -1.0, dtype=torch.float64)
    return Batch(
        mask_bt=torch.ones_like(old_bt, dtype=torch.bool),
        group_b=torch.zeros(1, dtype=torch.int64),
        reward_b=torch.zeros(1, dtype=torch.float64),
        old_bt=old_bt,
        advantage_bt=torch.tensor([ADVS], dtype=torch.float64),
        step=step,
        steps=steps,
    )


def losses(part: Objective, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each token, and its slope by the log-prob."""
    logp_bt = (batch.need("old_bt", "the test") + torch.tensor([LOGS], dtype=torch.float64)).requires_grad_()
    found = part(logp_bt, batch).loss_bt  # type: ignore[union-attr]
    (slope_bt,) = torch.autograd.grad(found.sum(), logp_bt)
    return found.detach()[0], slope_bt[0]


def test_scales_that_stay_are_the_discovered_drift_to_the_bit() -> None:
    for step in (0, 3, 9):
        ours = losses(HorizonDrift(alpha_end=2.0, beta_end=0.6), moved(step, 10))
        theirs = losses(DiscoveredDrift(), moved())
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("step", "alpha", "beta"), [(0, 2.0, 0.6), (5, 1.25, 0.375), (10, 0.5, 0.15)])
def test_the_scales_move_with_the_share_of_the_run_by_hand(step: int, alpha: float, beta: float) -> None:
    loss_t, _ = losses(HorizonDrift(), moved(step, 11))
    for found, log, adv in zip(loss_t.tolist(), LOGS, ADVS, strict=True):
        ratio, scale = math.exp(log), alpha if adv >= 0 else beta
        gain = (ratio - 1) * adv if adv >= 0 else log * adv
        assert found == pytest.approx(max(0.0, gain - scale * math.tanh(gain / scale)) - ratio * adv, abs=1e-12)


def test_a_longer_run_has_the_same_rule_at_the_same_share() -> None:
    for part in (HorizonDrift(), FeatureDrift()):
        short, long = losses(part, moved(5, 11)), losses(part, moved(50, 101))
        assert torch.allclose(short[0], long[0], atol=1e-12)
        assert not torch.allclose(short[0], losses(part, moved(9, 11))[0])


def test_nothing_is_held_at_a_ratio_of_1_whenever_it_is() -> None:
    """f = 0 with slope 0: the gradient is the policy gradient's, -A."""
    for part in (HorizonDrift(), FeatureDrift(), FeatureDrift(weights=(1.0,) * 8, late=(-3.0,) * 8)):
        for step in (0, 10):
            loss_t, slope_t = losses(part, moved(step, 11))
            still = [number for number, log in enumerate(LOGS) if log == 0]
            assert loss_t[still].tolist() == pytest.approx([-ADVS[i] for i in still])
            assert slope_t[still].tolist() == pytest.approx([-ADVS[i] for i in still])


def test_a_tighter_scale_holds_more_of_what_has_moved() -> None:
    """Up with A > 0 the push becomes weaker; down with A < 0, by e^-0.3, it turns into a pull back."""
    early, late = (losses(HorizonDrift(), moved(step, 11))[1] for step in (0, 10))
    moved_up, moved_down = LOGS.index(1.1), 6
    assert float(early[moved_up]) < float(late[moved_up]) <= 0
    assert float(early[moved_down]) > 0 > float(late[moved_down])


@pytest.mark.parametrize("part", [HorizonDrift(), FeatureDrift(), FeatureDrift(weights=(0.1,) * 8, late=(0.2,) * 8)])
def test_slopes_are_those_of_finite_differences(part: Objective) -> None:
    batch, logp_bt = moved(4, 11), torch.tensor([[x - 1 + 1e-3 for x in LOGS]], dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: part(x, batch).loss_bt, (logp_bt,))  # type: ignore[union-attr]


def test_the_eight_features_by_hand() -> None:
    """ρ = e^0.5, A = -2: 1 - ρ = -0.64872, its square 0.42084."""
    found = features(torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([[-2.0]], dtype=torch.float64))[0, 0]
    off = 1 - math.exp(0.5)
    expected = [off, off**2, -2 * off, -2 * off**2, 0.5, 0.25, -1.0, -0.5]
    assert found.tolist() == pytest.approx(expected)


def test_weights_of_zero_hold_nothing_and_late_ones_of_zero_know_no_time() -> None:
    """-ρ·A alone; without late weights neither step nor length is read."""
    none = FeatureDrift(weights=(0.0,) * 8, late=(0.0,) * 8)
    loss_t, _ = losses(none, moved())
    assert loss_t.tolist() == pytest.approx([-math.exp(log) * adv for log, adv in zip(LOGS, ADVS, strict=True)])
    assert "all its weights are 0" in none.idle(RunFacts())[0]
    plain = FeatureDrift(late=(0.0,) * 8)
    assert plain.needs() == ("old_bt",)
    assert torch.equal(losses(plain, moved())[0], losses(FeatureDrift(), moved(0, 11))[0])
    assert FeatureDrift().needs() == ("old_bt", "step", "steps")


def test_by_default_the_drift_is_the_squared_distance_from_1_at_the_end() -> None:
    loss_t, _ = losses(FeatureDrift(), moved(10, 11))
    expected = [(1 - math.exp(x)) ** 2 - math.exp(x) * adv for x, adv in zip(LOGS, ADVS, strict=True)]
    assert loss_t.tolist() == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(
    "part",
    [
        HorizonDrift(),
        DiscoveredDrift(),
        FeatureDrift(),
        FeatureDrift(late=(0.0,) * 8),
        FeatureDrift(weights=(0.0,) * 8, late=(0.0,) * 8),
    ],
)
def test_the_lines_of_plain_torch_are_the_part(part: Objective) -> None:
    batch = moved(3, 11)
    logp_bt = batch.need("old_bt", "the test") + torch.tensor([LOGS], dtype=torch.float64)
    names: dict[str, Any] = {"torch": torch, "math": math, "held": held, "logp_bt": logp_bt, "step": 3, "steps": 11}
    names |= {"old_bt": batch.old_bt, "adv_bt": batch.advantage_bt, "active_bt": batch.mask_bt}
    exec(part.code(), names)
    assert torch.allclose(names["loss_bt"], part(logp_bt, batch).loss_bt, atol=2e-6)  # type: ignore[union-attr]


def test_a_feature_without_its_weight_is_refused() -> None:
    with pytest.raises(InputError, match="weights"):
        compose({"base": "horizon_drift", "objective": {"part": "feature_drift", "weights": [1.0, 2.0]}})


def test_the_weights_of_features_have_the_precision_of_the_policy() -> None:
    """0.1 + 0.3·(4/10) is no number of float32: the drift of each token, in whole float64, from its eight features."""
    part = FeatureDrift(weights=(0.1,) * 8, late=(0.3,) * 8)
    for log, adv, loss in zip(LOGS, ADVS, losses(part, moved(4, 11))[0].tolist(), strict=True):
        off = -math.expm1(log)
        total = sum(x * (1 + adv) for x in (off, off**2, log, log**2))
        drift = max(0.0, (0.1 + 0.3 * 0.4) * total - 1e-6)
        assert loss == pytest.approx(drift - math.exp(log) * adv, abs=1e-13)
