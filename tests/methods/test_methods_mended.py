"""Formulas that once were not their papers', each by hand from what the paper or the authors' code says."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

import grouprl
from batches import outcome, random_case
from grouprl.algorithms.advantage.advantage import Given
from grouprl.algorithms.advantage_transform.papers.token_credit import information_gain
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.augment.papers.success_replay import SuccessReplay
from grouprl.algorithms.buffer.papers.self_imitation import middle
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.objective.papers.kl_cov import KLCov
from grouprl.algorithms.objective.papers.soft import GeometricMean
from grouprl.algorithms.part import PARTS, Part, part
from grouprl.algorithms.regularize.papers.coverage import Coverage
from grouprl.algorithms.update.papers.clip_bias import clipped_terms
from grouprl.algorithms.update.papers.trust_region import natural_step
from grouprl.core.errors import InputError
from grouprl.methods.compose import compose
from small import f64, gradient, near, prepared, ragged, slopes, small


def bits(p: float) -> float:
    return 0.0 if p in (0.0, 1.0) else -(p * math.log2(p) + (1 - p) * math.log2(1 - p))


# --- KTAE -----------------------------------------------------------------------------------------------------------


def test_the_information_gain_of_a_token_is_never_negative_and_counts_both_sides():
    """All tables of groups of eight, by the definition: H(right) - Σ_x p(x)·H(right | x)."""
    for right in range(1, 8):
        wrong = 8 - right
        for a, b in itertools.product(range(right + 1), range(wrong + 1)):
            gain = float(information_gain(f64([a]), f64([b]), right, wrong))
            present = 0.0 if a + b == 0 else (a + b) / 8 * bits(a / (a + b))
            rest = 8 - a - b
            absent = 0.0 if rest == 0 else rest / 8 * bits((right - a) / rest)
            assert gain >= 0
            assert math.isclose(gain, bits(right / 8) - present - absent, abs_tol=1e-12)


def test_a_token_gains_as_much_where_it_is_missing_as_where_it_stands():
    """Exchanging completions with the token for those without tells the same of being right."""
    with_it = information_gain(f64([3.0]), f64([1.0]), 4.0, 4.0)
    without = information_gain(f64([1.0]), f64([3.0]), 4.0, 4.0)
    near(with_it, without)


def test_ktae_averages_over_tokens_and_bounds_a_wrong_tokens_loss():
    """Token mean over three tokens; the wrong token's ratio e^1.2 = 3.32 is beyond the dual clip 3."""
    batch = small([1.0, 0.0], [2, 1], correct_b=[True, False], truncated_b=[True, True])
    batch = batch.replace(token_bt=f64([[5, 5], [5, 0]]).long())
    method = grouprl.method("ktae", scale="none")
    near(gradient(method, batch, batch.old_bt), [[-0.5 / 3, -0.5 / 3], [0.5 / 3, 0.0]])
    near(gradient(method, batch, batch.old_bt + f64([[0.0, 0.0], [1.2, 0.0]])), [[-0.5 / 3, -0.5 / 3], [0.0, 0.0]])


# --- clamps that took the way back ---


def lost(drop: float) -> tuple:
    """Two one-token turns, the better of which became e^-drop times as likely as the reference finds it."""
    fields = {"ref_bt": [[-1.0], [-1.0]], "turn_bt": [[0], [0]], "state_bs": [[0], [0]]}
    batch = small([1.0, 0.0], **fields)
    batch = batch.replace(turn_bt=torch.zeros(2, 1, dtype=torch.int64), token_bt=torch.tensor([[1], [2]]))
    return batch, batch.old_bt - f64([[drop], [0.0]])


@pytest.mark.parametrize("name", ["dmpo", "sdpo_segment"])
def test_a_preference_turned_around_by_far_is_still_pulled_back(name):
    """-log σ(βm) at m = -60, β = 0.1: slope -0.1·σ(6), half on each of the two rows of one pair."""
    batch, logp_bt = lost(60.0)
    slope = 0.1 / (1 + math.exp(-6.0))
    near(gradient(grouprl.method(name), batch, logp_bt), [[-slope], [slope]])


def test_a_guarded_token_is_pulled_up_however_far_it_fell():
    batch = small([1.0, 0.0])
    method = grouprl.method("llds", kl_coef=0.0, coef=0.2)
    near(gradient(method, batch, batch.old_bt - f64([[50.0], [0.0]]))[:1], [[-0.2 / 2]], atol=1e-6)


def test_a_right_completion_that_was_lost_still_learns_by_its_likelihood():
    """NFT's loss of a right token is -log ρ (times its prompt's weight): its slope does not depend on ρ < e^10."""
    batch = small([1.0, 0.0], correct_b=[True, False])
    method = grouprl.method("nft")
    near(
        gradient(method, batch, batch.old_bt - f64([[40.0], [0.0]]))[:1],
        gradient(method, batch, batch.old_bt - f64([[4.0], [0.0]]))[:1],
    )


@pytest.mark.parametrize("divergence", ["forward_kl", "js", "alpha"])
def test_what_the_initial_policy_wrote_is_called_back_from_anywhere(divergence):
    """f'(log u) at u → 0: -1 for KL(π_0 || π); 0 but for rounding for the others, as in the formula."""
    batch = small([0.0], behavior_bt=[[-1.0]], source_b=[4]).replace(share_bt=f64([[1.0]]))
    term = Coverage(coef=1.0, divergence=divergence)
    logp_bt = f64([[-31.0]]).requires_grad_()
    (grad_bt,) = torch.autograd.grad(term(logp_bt, batch).loss_bt.sum(), logp_bt)
    assert torch.isfinite(grad_bt).all()
    if divergence == "forward_kl":
        near(grad_bt, [[math.expm1(-30.0)]])


def test_the_penalty_of_high_covariance_grows_without_end():
    """KL-Cov: the only token pays |log ρ|, whose slope is -1 below π_old, also at 30 nats."""
    batch = prepared([[0.0]])
    _, grad_bt = slopes(KLCov(share=1.0, coef=1.0), [[-30.0]], batch)
    near(grad_bt, [[-1.0]])


def test_the_geometric_mean_counts_a_token_that_was_lost():
    """GMPO, A = 1, log ρ = -30 and 0.2: g = exp(-14.9), slope -g/2 on each token; the loss stands on both."""
    batch = prepared([[1.0, 1.0]])
    _, grad_bt = slopes(GeometricMean(), [[-30.0, 0.2]], batch)
    torch.testing.assert_close(grad_bt, f64([[-math.exp(-14.9)] * 2]), rtol=1e-9, atol=0)


# --- numbers that are not numbers, rows without tokens, truncated completions ---


@pytest.mark.parametrize("field", ["multiplier_bt", "advantage_bt", "return_bt", "stats"])
def test_a_number_that_is_none_is_refused_inside_the_mask_and_harmless_outside(field):
    def given(rows: list) -> dict:
        return {"stats": {"certainty": ragged(rows)}} if field == "stats" else {field: ragged(rows)}

    with pytest.raises(InputError, match=f"{field}.* is not finite in row 1 .group 0."):
        small([1.0, 0.0], [2, 1], **given([[1.0, 1.0], [math.nan, 1.0]]))
    plain = small([1.0, 0.0], [2, 1], **given([[0.5, 2.0], [1.0, 1.0]]))
    spoiled = small([1.0, 0.0], [2, 1], **given([[0.5, 2.0], [1.0, math.nan]]))
    grads = [gradient(grouprl.method("grpo"), batch, batch.old_bt) for batch in (plain, spoiled)]
    assert torch.isfinite(grads[1]).all()
    near(grads[0], grads[1])


def test_a_multiplier_that_spoils_a_token_is_refused_where_it_is_made(request):
    """A weight part whose factor is not finite is named at once, not by a loss that is not a number."""

    @part("token_weight", "spoiled_for_a_test")
    class Spoiled(Part):
        says = "spoils"

        def __call__(self, batch):
            return torch.full_like(batch.old_bt, math.inf)

    request.addfinalizer(lambda: PARTS["token_weight"].pop("spoiled_for_a_test"))
    method = grouprl.method("grpo").with_parts(token_weight=(Spoiled(),))
    with pytest.raises(InputError, match="returned inf in row 0, token 0"):
        method.compute_advantages(small([1.0, 0.0]))


EMPTY = torch.tensor([[True, True], [False, False], [True, False]])


def test_a_row_without_tokens_counts_in_its_group_and_nowhere_else():
    """Rewards 1, 0, 0.5 around their mean 0.5; TRL and verl judge the empty completion along too."""
    batch = small([1.0, 0.0, 0.5], [2, 2, 1]).replace(mask_bt=EMPTY)
    method = grouprl.method("grpo", scale="none")
    near(method.prepare(batch).advantage_bt, [[0.5, 0.5], [0.0, 0.0], [0.0, 0.0]])
    near(gradient(method, batch, batch.old_bt), [[-0.5 / 4] * 2, [0.0, 0.0], [0.0, 0.0]])


def test_only_a_batch_without_any_token_is_refused():
    with pytest.raises(InputError, match="no action token in any of its 2 rows"):
        small([1.0, 0.0]).replace(mask_bt=torch.zeros(2, 1, dtype=torch.bool))


@pytest.mark.parametrize("name", sorted(n for n in grouprl.methods() if n not in ("t_spmo",)))
def test_every_method_bears_a_row_without_tokens(name):
    """Nothing becomes infinite, and the empty row has no gradient."""
    case = random_case(5)
    mask_bt, batch = case.batch.mask_bt.clone(), case.batch
    mask_bt[3] = False
    turn_bt = torch.where(mask_bt, batch.turn_bt, -1)
    marks = {
        key: value & mask_bt if key != "said" else value & mask_bt.any(1)[:, None] for key, value in batch.marks.items()
    }
    batch = batch.replace(mask_bt=mask_bt, turn_bt=turn_bt, marks=marks)
    found = outcome(grouprl.method(name), dataclasses.replace(case, batch=batch))
    assert torch.isfinite(found.value)
    assert torch.isfinite(found.grad_bt).all()
    assert not found.grad_bt[3].any()


@pytest.mark.parametrize(
    ("name", "divisors"),
    [
        ("grpo@trl", (8, 4)),
        ("luspo@trl", (4, 4)),
        ("dr_grpo@trl", (16, 16)),
        ("dapo@trl", (4, 4)),
        ("bnpo@trl", (4, 4)),
    ],
)
def test_masked_truncated_completions_have_trls_denominators(name, divisors):
    """TRL zeroes the mask of a truncated completion: B and B·Lmax stay what they were, Σ|y| counts what is left.

    Rewards 1, 0, 0, 1 of 2, 1, 1, 1 tokens, the last truncated: A = ±0.5/(std + 1e-4), sample std √(1/3).
    """
    batch = small([1.0, 0.0, 0.0, 1.0], [2, 1, 1, 1], truncated_b=[False, False, False, True], max_length=4)
    masked = grouprl.method(name, mask_truncated_completions=True)
    size = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    rows = [[-size / divisors[0]] * 2, [size / divisors[1], 0.0], [size / divisors[1], 0.0], [0.0, 0.0]]
    near(gradient(masked, batch, batch.old_bt), rows)
    ready = masked.prepare(batch)
    assert masked.zero_rows(ready).tolist() == [False, False, False, True]


def test_dropped_completions_leave_the_denominator_masked_ones_do_not():
    """B/B' = 4/3 apart."""
    batch = small([1.0, 0.0, 0.0, 1.0], truncated_b=[False, False, False, True])
    dropped, masked = (
        gradient(compose({"base": "grpo@trl", "filter": [part]}).method, batch, batch.old_bt)
        for part in ("drop_truncated", "mask_truncated")
    )
    near(dropped, masked * 4 / 3)


def test_a_masked_completion_pays_no_kl_either():
    batch = small([1.0, 0.0], ref_bt=[[-2.0], [-2.0]], truncated_b=[False, True])
    method = compose({"base": "grpo", "kl_coef": 0.1, "filter": ["mask_truncated"]}).method
    found = gradient(method, batch, batch.old_bt)
    assert found[0, 0] != 0
    assert found[1, 0] == 0


# --- filters, percentiles, levels of means ---


@pytest.mark.parametrize("name", ["intellect2", "thor", "scalerl"])
def test_zero_variance_filters_keep_graded_groups_in_which_nobody_is_right(name):
    batch = small(
        [0.6, 0.2, 0.4, 0.4], groups=[0, 0, 1, 1], correct_b=[False] * 4, behavior_bt=[[-1.0]] * 4, ref_bt=[[-1.0]] * 4
    )
    ready = grouprl.method(name).prepare(batch)
    assert (ready.weight_bt != 0)[:, 0].tolist() == [True, True, False, False]
    refill = grouprl.method(name).refill
    assert refill is None or refill.wanted(batch).tolist() == [True, True, False, False]


def test_filters_by_outcome_still_go_by_correctness():
    batch = small([0.6, 0.2], correct_b=[False, False])
    assert not grouprl.method("dapo").prepare(batch).weight_bt.any()


def test_self_plays_proposer_is_whitened_over_its_tokens():
    """REINFORCE++ on lengths 3, 1, 2 and rewards 1, 0, ½: mean 4/6, variance with n-1 over six tokens."""
    batch = small(
        [1.0, 0.0, 0.5], [3, 1, 2], groups=[0, 1, 2], agent_b=[1, 1, 1], keys={"episode": torch.arange(3)}, step=9
    )
    token = [1.0, 1.0, 1.0, 0.0, 0.5, 0.5]
    mean = sum(token) / 6
    std = math.sqrt(sum((x - mean) ** 2 for x in token) / 5 + 1e-8)
    a, b, c = ((x - mean) / std for x in (1.0, 0.0, 0.5))
    near(grouprl.method("ssp").prepare(batch).advantage_bt, [[a, a, a], [b, 0.0, 0.0], [c, c, 0.0]])
    by_row = grouprl.method("ssp", proposer="group", alone="raw").prepare(batch).advantage_bt
    near(by_row[:, 0], [1.0, 0.0, 0.5])


def test_replays_failure_is_judged_by_the_unbiased_deviation():
    """Rewards 0 and 0.06: 0.03 with n, 0.0424 with n-1; 0 and 0.08: 0.04 and 0.0566, which is no failure any more."""
    replay = SuccessReplay()
    assert replay.has_failed(np.array([0.0, 0.06]))
    assert not replay.has_failed(np.array([0.0, 0.08]))
    assert not replay.has_failed(np.array([0.0]))


def test_the_fiftieth_percentile_of_an_even_number_lies_in_the_middle():
    assert middle(torch.tensor([0.0, 1.0, 0.25, 0.75])) == 0.5
    assert middle(torch.tensor([3.0, 1.0, 2.0])) == 2.0


def test_stored_advantages_are_in_units_of_the_stored_deviations():
    """SPEAR with a scale hands it on; without one nothing is divided."""
    spear = grouprl.method("spear", scale="sample_std", eps=0.5)
    assert (spear.buffer.scale, spear.buffer.eps) == ("sample_std", 0.5)
    assert grouprl.method("spear").buffer.scale == "none"


def test_the_clips_bias_is_a_mean_over_completions():
    """E[1/|y| Σ]: a clipped token of two in the first of two completions weighs ½·½, that of one in the second ½."""
    batch = prepared([[1.0, 1.0], [1.0]])
    batch = Method(advantage=Given(), objective=Clipped(), aggregate=TokenMean()).compute_loss_weights(batch)
    logp_bt = (batch.old_bt + ragged([[math.log(2), 0.0], [math.log(2)]])).requires_grad_()
    (grad_bt,) = torch.autograd.grad(clipped_terms(Clipped(), logp_bt, batch), logp_bt)
    near(grad_bt, [[2 / 4, 0.0], [2 / 2, 0.0]])


def test_progress_is_read_where_the_turn_ends():
    """Turn 0 ends at position 1, the environment's observation is at 2 and 3, turn 1 begins at 4."""
    mask_t = torch.tensor([True, True, False, False, True])
    model = grouprl.method("spa_rl").pretrain[0]
    assert model.at == "turn"
    assert model._read(mask_t, 1) == 2
    assert grouprl.method("spa_rl", progress_at="observation").pretrain[0]._read(mask_t, 1) == 4


def test_a_natural_steps_length_comes_from_all_completions():
    """Half of the data sees no curvature along the second axis: g = (1, 1), F_thin = diag(1, 0.01), F = diag(1, 1).

    x = (1, 100); the length by F_thin is √(2δ/101), by F √(2δ/10001): ten times less.
    """
    thin = lambda v: v * f64([1.0, 0.01])  # noqa: E731
    short = natural_step(f64([1.0, 1.0]), thin, 0.5, 10, whole=lambda v: v)
    long = natural_step(f64([1.0, 1.0]), thin, 0.5, 10)
    near(short, f64([1.0, 100.0]) / math.sqrt(10001), atol=1e-8)
    near(long, f64([1.0, 100.0]) / math.sqrt(101), atol=1e-8)


# --- methods that act in their optimiser steps ---

IN_STEPS = sorted(n for n, e in grouprl.methods().items() if e.build().update is not None)


@pytest.mark.parametrize("name", IN_STEPS)
def test_the_library_call_warns_of_what_it_leaves_out(name):
    method = grouprl.method(name)
    assert any("called as a library" in note for note in grouprl.methods()[name].card.notes)
    with pytest.warns(UserWarning, match=f"'{name}' acts in its optimiser steps too"):
        method.prepare(random_case(0).batch)


def test_other_methods_do_not_warn(recwarn):
    assert {"capo", "lopti", "ar_lopti", "trpo", "st_ppo"} <= set(IN_STEPS)
    grouprl.method("grpo").prepare(small([1.0, 0.0]))
    assert not recwarn.list
