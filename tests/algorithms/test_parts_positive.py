"""Parts that treat right and wrong completions, or first and later tokens, differently."""

from __future__ import annotations

import math

import pytest
import torch

from grouprl.algorithms.advantage_transform.papers.reweigh import DifficultyWeight, DropOutliers, LongWrong
from grouprl.algorithms.aggregate.aggregate import SequenceMean, TokenMean
from grouprl.algorithms.aggregate.papers.control import ControlToken
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.objective.papers.outer_clip import PreClipped
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.regularize.papers.positive import DifficultyKL, PositiveNLL
from grouprl.algorithms.regularize.regularize import KLLoss
from grouprl.algorithms.reward_transform.papers.unlikeliness import Unlikeliness, shared_rank
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from small import f64, near, prepared, slopes, small


def nll(batch: Batch, logp_bt: torch.Tensor, coef: float = 1.0) -> float:
    weight_bt = batch.need("weight_bt", "test")
    return float((weight_bt * PositiveNLL(coef=coef)(logp_bt, batch).loss_bt).sum())


def weighted(batch: Batch, aggregate=TokenMean) -> Batch:
    return batch.replace(weight_bt=aggregate()(batch))


# --- likelihood of correct completions
# --------------------------------------------------------------------------------------


def test_the_mean_is_over_tokens_of_right_completions_only():
    logp_bt = f64([[-1, -3, 0], [-9, -9, -9], [-2, 0, 0]])
    batch = small([1, 0, 1], [2, 3, 1])
    assert nll(weighted(batch), logp_bt) == pytest.approx((1 + 3 + 2) / 3)
    assert nll(weighted(batch), logp_bt, 0.1) == pytest.approx(0.2)
    assert nll(weighted(batch, SequenceMean), logp_bt) == pytest.approx((2 + 2) / 2)


def test_without_right_completions_the_term_is_exactly_zero():
    batch = weighted(small([0, 0], [2, 1]))
    assert not PositiveNLL()(f64([[-1, -2], [-3, 0]]), batch).loss_bt.any()


def test_correctness_decides_where_it_is_given():
    batch = weighted(small([1, 0]).replace(correct_b=torch.tensor([False, True])))
    assert nll(batch, f64([[-5], [-7]])) == pytest.approx(7)


# --- a KL that fades --------------------------------------------------------------------------------------------------


def test_the_weight_falls_with_difficulty():
    batch = prepared([[1.0], [-1.0], [1.0], [-1.0], [1.0], [1.0]], ref_bt=[[-1.0]] * 6)
    batch = batch.replace(
        group_b=torch.tensor([0, 0, 1, 1, 2, 2]), correct_b=torch.tensor([True, False, True, False, True, True])
    )
    half = 1 - math.exp(-math.e / 2)
    near(DifficultyKL().by_difficulty(batch)[:, 0], [half, 1, half, 1, 1, 1])
    near(torch.tensor(half), 0.743, 1e-3)


def test_the_easiest_prompts_keep_most_of_their_kl():
    batch = prepared([[1.0]] * 100, ref_bt=[[-1.0]] * 100).replace(correct_b=torch.arange(100) > 0)
    near(DifficultyKL().by_difficulty(batch)[1, 0], 1 - math.exp(-math.e * 0.99))


def test_without_right_completions_it_is_the_plain_kl():
    batch = prepared([[1.0, 1.0], [-1.0]], ref_bt=[[-1.5, -1.0], [-2.0]]).replace(correct_b=torch.zeros(2).bool())
    logp_bt = f64([[-0.5, -2.0], [-1.0, 0.0]])
    near(DifficultyKL(coef=0.3)(logp_bt, batch).loss_bt, KLLoss(coef=0.3)(logp_bt, batch).loss_bt)


def test_a_fading_kl_needs_a_reference():
    assert DifficultyKL().refuse(RunFacts(has_reference=False))
    assert DifficultyKL(coef=0.0).idle(RunFacts())


# --- rarity -----------------------------------------------------------------------------------------------------------


def test_rare_right_completions_earn_more():
    batch = small([1, 1, 0, 1], old_bt=[[-1.0], [-3.0], [-9.0], [-2.0]])
    near(Unlikeliness()(batch).reward_b, [1 - 0.25 * 3 / 4, 1 - 0.25 / 4, 0, 1 - 0.25 * 2 / 4])


def test_a_wrong_completion_s_own_rank_does_not_matter():
    a, b = (Unlikeliness()(small([1, -1, 0], old_bt=[[-1.0], [x], [-2.0]])).reward_b[1:] for x in (-9.0, -0.1))
    near(a, b)


def test_rank_is_of_the_mean_and_of_the_group():
    batch = small([1, 1, 1, 1], [1, 3, 1, 1], [0, 0, 1, 1], old_bt=[[-2.0], [-1.0] * 3, [-5.0], [-4.0]])
    near(Unlikeliness(beta=1.0)(batch).reward_b, [1, 0.5, 1, 0.5])


def test_equal_values_share_their_rank():
    rank_b, size_b = shared_rank(f64(2, 1, 2, 5), torch.zeros(4).long())
    near(rank_b, [1.5, 0, 1.5, 3])
    near(size_b, [4, 4, 4, 4])


# --- weights of advantages --------------------------------------------------------------------------------------------


def test_the_difficulty_weight_s_table():
    shares = f64(0.125, 0.25, 0.5, 0.75, 0.875)
    near(DifficultyWeight().weight(shares), [1.498, 1.493, 1.417, 0.950, 0.645], 6e-4)
    near(DifficultyWeight().weight(1 - shares), [0.645, 0.950, 1.417, 1.493, 1.498], 6e-4)


def test_right_completions_to_hard_prompts_are_amplified():
    batch = small([1, 0, 0, 0])
    out = DifficultyWeight()(f64([[1], [-1], [-1], [0]]), batch)
    part = DifficultyWeight()
    near(out[:, 0], [float(part.weight(f64(0.25))), -float(part.weight(f64(0.75))), -float(part.weight(f64(0.75))), 0])


def test_long_wrong_completions():
    part, adv_bt = LongWrong(base=2.0), -torch.ones(5, 1).double()
    factor = part(adv_bt, small([1, 1, 0, 0, 0], [2, 4, 3, 4, 6])).mul(-1)[:, 0]
    near(factor, [1, 1, 1, 1.5, 1.875])
    near(LongWrong()(adv_bt[:2], small([1, 0], [1, 1001]))[1], [-1.00995], 1e-5)


def test_without_right_completions_no_length_is_long():
    near(LongWrong(base=2.0)(f64([[-1], [-1]]), small([0, 0], [1, 9])), [[-1], [-1]])


def test_outliers_are_dropped_not_clipped():
    near(DropOutliers(sigma=3.0)(f64([[3.0, 3.01, -10.0, -3.0]]), small([0], [4])), [[3, 0, 0, -3]])


# --- the first bound of the ratio -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_beyond_the_bound_there_is_no_gradient(sign):
    batch = prepared([[sign] * 4])
    loss_bt, grad_bt = slopes(PreClipped(clip_low=1.0, clip_high=1e9), [[-50.0, -6.0, 6.0, 50.0]], batch)
    near(loss_bt[0, [0, 3]], [-sign * 1e-3, -sign * 1e3], 1e-9)
    assert grad_bt[0].ne(0).tolist() == [False, True, True, False]


def test_inside_the_bound_it_is_ppo():
    rows, batch = [[-0.5, -0.1, 0.1, 0.5]], prepared([[1.0, -1.0, 1.0, -1.0]])
    for ours, theirs in zip(slopes(PreClipped(), rows, batch), slopes(Clipped(), rows, batch), strict=True):
        near(ours, theirs)


# --- the control token ------------------------------------------------------------------------------------------------


def test_the_first_token_s_weight_does_not_know_lengths():
    for lengths in ([2, 3], [20, 30]):
        weight_bt = ControlToken(coef=0.4)(small([1, 0], lengths))
        near(weight_bt[:, 0], [0.2, 0.2])
        near(weight_bt[:, 1:].sum(), 1.0)


def test_the_first_token_is_the_policy_s_first():
    mask_bt = torch.tensor([[False, True, False, True], [True, False, False, True]])
    batch = Batch(mask_bt=mask_bt, group_b=torch.zeros(2).long(), reward_b=f64(0, 1))
    near(ControlToken(coef=1.0)(batch), [[0, 0.5, 0, 0.5], [0.5, 0, 0, 0.5]])


def test_completions_of_one_token_are_all_control():
    near(ControlToken(coef=1.0)(small([1, 0])), [[0.5], [0.5]])


def test_the_share_of_tokens_gives_the_token_mean():
    """With N_c first and N_r later tokens α = N_c/N_r is the token mean times (N_c + N_r)/N_r."""
    batch = small([1, 0, 0], [2, 5, 4])
    near(ControlToken(coef=3 / 8)(batch), TokenMean()(batch) * 11 / 8)


def test_a_missing_field_is_named():
    with pytest.raises(InputError, match="old_bt"):
        Unlikeliness()(small([1, 0], old_bt=None))
