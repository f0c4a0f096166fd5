"""Surrogates: hand values, the four quadrants of the clip, and what keeps a gradient."""

from __future__ import annotations

from math import exp

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.algorithms.objective.objective import Clipped, PolicyGradient
from grouprl.algorithms.objective.papers.masked_importance import MaskedImportanceObjective
from grouprl.algorithms.objective.papers.soft import GeometricMean, SoftGate
from grouprl.algorithms.objective.stop_gradient import Capped
from grouprl.algorithms.part import RunFacts
from grouprl.core.errors import InputError
from small import f64, near, prepared, slopes

LEFT, RIGHT = -0.5, 0.5
"""Log-ratios far below 0.8 and far above 1.2."""


def test_policy_gradient():
    loss_bt, grad_bt = slopes(PolicyGradient(), [[0.5, -1.0]], prepared([[2.0, -3.0]]))
    near(loss_bt, [[1.0, -6.0]])
    near(grad_bt, [[-2.0, 3.0]])


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "dual", "slope"),
    [
        (1.0, LEFT, None, -exp(LEFT)),
        (1.0, RIGHT, None, 0.0),
        (-1.0, LEFT, None, 0.0),
        (-1.0, RIGHT, None, exp(RIGHT)),
        (1.0, 0.1, None, -exp(0.1)),
        (-1.0, -0.1, None, exp(-0.1)),
        (-1.0, 1.0, 3.0, exp(1.0)),
        (-1.0, 1.2, 3.0, 0.0),
        (1.0, 1.2, 3.0, 0.0),
        (-1.0, LEFT, 3.0, 0.0),
        (0.0, RIGHT, 3.0, 0.0),
    ],
)
def test_quadrants_of_the_clip(advantage, log_ratio, dual, slope):
    """The gradient is -A·ρ, or zero where the ratio has moved on in the advantage's direction, or beyond the dual."""
    _, grad_bt = slopes(Clipped(clip_low=0.2, clip_high=0.2, dual_clip=dual), [[log_ratio]], prepared([[advantage]]))
    near(grad_bt, [[slope]])


def test_values_of_the_clip():
    loss_bt, _ = slopes(
        Clipped(clip_low=0.2, clip_high=0.28, dual_clip=3.0),
        [[RIGHT, LEFT], [RIGHT, LEFT], [2.0, 0.0]],
        prepared([[2.0, 2.0], [-2.0, -2.0], [-2.0, -2.0]]),
    )
    near(loss_bt, [[-2 * 1.28, -2 * exp(LEFT)], [2 * exp(RIGHT), 2 * 0.8], [6.0, 2.0]])


def test_the_dual_clip_is_the_two_sided_clip():
    """INTELLECT-2 caps the ratio of the free branch at δ: the same function for δ > 1 + high."""
    log_bt = torch.linspace(-2, 3, 101, dtype=torch.float64)[None].expand(2, -1)
    batch = prepared([[1.5] * 101, [-1.5] * 101])
    ours, _ = slopes(Clipped(clip_low=0.2, clip_high=0.28, dual_clip=4.0), log_bt.tolist(), batch)
    ratio_bt, adv_bt = log_bt.exp(), batch.advantage_bt
    theirs = torch.maximum(-adv_bt * ratio_bt.clamp(max=4.0), -adv_bt * ratio_bt.clamp(0.8, 1.28))
    near(ours, theirs)


def test_on_policy_the_clip_is_the_policy_gradient():
    batch = prepared([[1.0, -2.0, 0.5]])
    loss_bt, grad_bt = slopes(Clipped(), [[0.0, 0.0, 0.0]], batch)
    near(loss_bt, -batch.advantage_bt)
    near(grad_bt, -batch.advantage_bt)


def test_without_bounds_the_clip_is_importance_weighting():
    batch = prepared([[1.0, -2.0, 0.5]])
    _, grad_bt = slopes(Clipped(clip_low=1.0, clip_high=1e9), [[3.0, -3.0, 0.2]], batch)
    near(grad_bt, [[-exp(3.0), 2 * exp(-3.0), -0.5 * exp(0.2)]])


def test_metrics_of_the_clip():
    batch = prepared([[1.0, 1.0, -1.0, -1.0]])
    metrics = Clipped(dual_clip=3.0)(batch.old_bt + f64([[RIGHT, LEFT, LEFT, 2.0]]), batch).metrics
    near(metrics["clip_fraction_high"], [[1.0, 0.0, 0.0, 0.0]])
    near(metrics["clip_fraction_low"], [[0.0, 0.0, 1.0, 0.0]])
    near(metrics["clip_fraction"], [[1.0, 0.0, 1.0, 0.0]])
    near(metrics["clip_fraction_dual"], [[0.0, 0.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("level", "slope"),
    [
        ("token", [-exp(0.1), -exp(-0.2), -exp(0.4)]),
        ("sequence", [-exp(0.1)] * 3),
        ("sequence_token", [-exp(0.1)] * 3),
        ("sequence_sum", [-3 * exp(0.3)] * 3),
    ],
)
def test_ratio_levels(level, slope):
    """Log-ratios 0.1, -0.2, 0.4: mean 0.1, sum 0.3. The sequence's ratio has 1/3 of each token's slope, three times."""
    _, grad_bt = slopes(Clipped(clip_low=1.0, clip_high=1e9, ratio=level), [[0.1, -0.2, 0.4]], prepared([[1.0] * 3]))
    near(grad_bt, [slope])


def test_sequence_ratios_see_active_tokens_only():
    batch = prepared([[1.0, 1.0, 0.0]]).replace(loss_mask_bt=torch.tensor([[True, True, False]]))
    loss_bt, grad_bt = slopes(Clipped(clip_low=1.0, clip_high=1e9, ratio="sequence"), [[0.1, 0.3, 9.0]], batch)
    near(loss_bt[0, :2], [-exp(0.2)] * 2)
    assert grad_bt[0, 2] == 0


def test_the_ratio_to_the_sampler():
    batch = prepared([[1.0]], behavior_bt=[[-1.5]])
    _, grad_bt = slopes(Clipped(clip_low=1.0, clip_high=1e9, against="behavior"), [[0.1]], batch)
    near(grad_bt, [[-exp(0.6)]])
    with pytest.raises(InputError, match="behavior_bt"):
        Clipped(against="behavior")(batch.old_bt, prepared([[1.0]]))


def test_capped_weights_keep_a_gradient():
    """Four limits: correct completions in [0.8, 1.28], wrong ones at most 5, without floor."""
    part = Capped(floor=0.8, cap=1.28, floor_negative=None, cap_negative=5.0)
    batch = prepared([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])
    _, grad_bt = slopes(part, [[1.0, -1.0, 0.1]] * 2, batch)
    near(grad_bt, [[-1.28, -0.8, -exp(0.1)], [exp(1.0), exp(-1.0), exp(0.1)]])
    _, far_bt = slopes(part, [[9.0, 9.0, 9.0]] * 2, batch)
    near(far_bt, [[-1.28] * 3, [5.0] * 3])
    assert part(batch.old_bt + 9.0, batch).metrics["capped_fraction"].sum() == 6


def test_free_weights_are_importance_weights():
    part = Capped(floor=None, cap=None, floor_negative=None, cap_negative=None)
    _, grad_bt = slopes(part, [[2.0, -2.0]], prepared([[1.0, -1.0]]))
    near(grad_bt, [[-exp(2.0), exp(-2.0)]])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([-2.0, -0.1, 0.0, 0.3, 1.0]), st.floats(-1.5, 1.5)), min_size=1, max_size=6),
)
def test_minirl_drops_exactly_what_the_clip_drops(pairs):
    """The mask of MiniRL is the zero-gradient set of PPO's clip with the same bounds."""
    batch = prepared([[a for a, _ in pairs]], behavior_bt=[[-1.2 for _ in pairs]])
    log = [[r for _, r in pairs]]
    _, ppo_bt = slopes(Clipped(clip_low=0.2, clip_high=0.27), log, batch)
    _, mini_bt = slopes(MaskedImportanceObjective(clip_low=0.2, clip_high=0.27), log, batch)
    assert torch.equal(ppo_bt == 0, mini_bt == 0)


def test_minirl_weighs_by_the_sampler():
    batch = prepared([[0.5, 0.5, -0.5]], behavior_bt=[[-1.5, -4.0, -1.0]])
    _, grad_bt = slopes(MaskedImportanceObjective(cap=5.0), [[0.1, 0.0, -0.3]], batch)
    near(grad_bt, [[-0.5 * exp(0.6), -0.5 * 5.0, 0.0]])


def test_the_soft_gate():
    """Slope 4q(1-q)ρA: whole at ratio 1, fading on both sides; the value is 2/τ·A at ratio 1."""
    part = SoftGate(tau_positive=1.0, tau_negative=2.0)
    loss_bt, grad_bt = slopes(part, [[0.0, 0.5], [0.0, 0.5]], prepared([[1.0, 1.0], [-1.0, -1.0]]))
    q1, q2 = (1 / (1 + exp(-tau * (exp(0.5) - 1))) for tau in (1.0, 2.0))
    near(loss_bt, [[-2.0, -4 * q1], [1.0, 2 * q2]])
    near(grad_bt, [[-1.0, -4 * q1 * (1 - q1) * exp(0.5)], [1.0, 4 * q2 * (1 - q2) * exp(0.5)]])


def test_the_geometric_mean_clips_tokens_on_the_side_of_the_advantage():
    part = GeometricMean(clip_low=0.4, clip_high=0.4)
    loss_bt, grad_bt = slopes(part, [[0.6, -0.6], [0.6, -0.6]], prepared([[2.0, 2.0], [-2.0, -2.0]]))
    near(loss_bt, [[-2 * exp(-0.1)] * 2, [2 * exp(0.1)] * 2])
    near(grad_bt, [[0.0, -2 * exp(-0.1)], [2 * exp(0.1), 0.0]])


def test_the_geometric_mean_of_no_advantage_has_no_gradient():
    _, grad_bt = slopes(GeometricMean(), [[3.0, -3.0]], prepared([[0.0, 0.0]]))
    assert not grad_bt.any()


@pytest.mark.parametrize("part", [Clipped(), Capped(), MaskedImportanceObjective(), SoftGate(), GeometricMean()])
def test_ratios_that_cannot_act_are_named(part):
    assert "ratio is always 1" in part.idle(RunFacts(updates_per_rollout=1))[0]
    assert part.idle(RunFacts(updates_per_rollout=2)) == []


def test_a_clip_against_an_inexact_sampler_acts_in_one_update():
    against = Clipped(against="behavior")
    assert against.idle(RunFacts(updates_per_rollout=1, exact_sampler=False)) == []
    assert against.idle(RunFacts(updates_per_rollout=1, exact_sampler=True))


@pytest.mark.parametrize(
    "part", [PolicyGradient(), Clipped(), Capped(), MaskedImportanceObjective(), SoftGate(), GeometricMean()]
)
def test_rows_without_advantage_are_called_zero_and_are(part):
    batch = prepared([[0.0, 0.0], [0.0, 1.0]], behavior_bt=[[-1.0, -1.0]] * 2)
    assert part.zero_rows(batch).tolist() == [True, False]
    _, grad_bt = slopes(part, [[0.1, 0.05], [0.1, 0.05]], batch)
    assert not grad_bt[0].any()
    assert grad_bt[1].any()


def test_formulas_name_the_policy_and_every_limit():
    assert "π_behavior" in Clipped(against="behavior").formula()
    assert "π_old" in Clipped().formula()
    assert "at most 3·|A|" in Clipped(dual_clip=3.0).formula()
    text = Capped(floor=0.8, cap=1.28, floor_negative=None, cap_negative=5.0, against="behavior").formula()
    assert "[0.8, 1.28] where A ≥ 0, [0, 5] where A < 0" in text
    assert "π_behavior" in text
    assert "∞" in MaskedImportanceObjective(cap=None).formula()
