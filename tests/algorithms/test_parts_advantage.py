"""Advantages and what is done with them afterwards."""

from __future__ import annotations

import pytest
import torch

from grouprl.algorithms.advantage.advantage import Given, Ones, RawReward, Relative
from grouprl.algorithms.advantage.papers.baselines import GreedyBaseline, LengthWeighted
from grouprl.algorithms.advantage_transform.advantage_transform import ValidFraction, Whiten
from grouprl.algorithms.building import build_part
from grouprl.algorithms.part import RunFacts
from grouprl.core.errors import InputError
from small import f64, near, small


def per_row(part, batch):
    adv_bt = part(batch)
    assert not adv_bt[~batch.mask_bt].any()
    return adv_bt[:, 0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"scale": "none"}, [0.75, -0.25, -0.25, -0.25]),
        ({"eps": 0.0}, [1.5, -0.5, -0.5, -0.5]),
        ({"scale": "population_std", "eps": 0.0}, [3**0.5, *[-(3**-0.5)] * 3]),
        ({"center": "leave_one_out", "scale": "none"}, [1.0, *[-1 / 3] * 3]),
        ({"center": "none", "scale": "none"}, [1.0, 0.0, 0.0, 0.0]),
        ({"eps": 1e-4}, [0.75 / 0.5001, *[-0.25 / 0.5001] * 3]),
    ],
)
def test_relative(settings, expected):
    near(per_row(Relative(**settings), small([1, 0, 0, 0], [2, 1, 1, 3])), expected)


def test_the_spread_of_the_batch():
    """Groups {1,0} and {1,1}: the batch's rewards have sample std 0.5, the centred ones sqrt(1/6)."""
    batch = small([1, 0, 1, 1], groups=[0, 0, 1, 1])
    near(per_row(Relative(scale_key="batch", eps=0.0), batch), [1.0, -1.0, 0.0, 0.0])
    root = (0.5 / 3) ** 0.5
    near(per_row(Relative(scale_key="batch", scale_of="centered", eps=0.0), batch), [0.5 / root, -0.5 / root, 0, 0])


def test_the_spread_of_a_batch_without_any():
    batch = small([1, 1, 1], groups=[0, 0, 1])
    assert not Relative(scale_key="batch", eps=0.0)(batch).any()


def test_a_spread_over_another_grouping_must_be_one():
    with pytest.raises(InputError, match="scale_key is 'batch' but scale is 'none'"):
        build_part("advantage", "relative", {"scale": "none", "scale_key": "batch"})
    with pytest.raises(ValueError, match="leave_one_out_std"):
        Relative(scale="leave_one_out_std", scale_key="batch")


def test_rows_out_of_the_statistics_get_nothing():
    batch = small([1, 0, 9]).replace(stat_b=torch.tensor([True, True, False]))
    near(per_row(Relative(scale="none"), batch), [0.5, -0.5, 0.0])
    near(per_row(LengthWeighted(), batch), [0.5, -0.5, 0.0])


def test_token_rewards_count_for_the_sequence():
    batch = small([1.0, 0.0], [2, 1], token_reward_bt=[[-0.25, -0.25], [-1.0]])
    near(per_row(Relative(scale="none"), batch), [0.75, -0.75])
    near(per_row(RawReward(), batch), [0.5, -1.0])


def test_other_groupings():
    batch = small([1, 0, 1, 1], groups=[0, 0, 0, 0], agent_b=[0, 0, 1, 1])
    near(per_row(Relative("agent", scale="none"), batch), [0.5, -0.5, 0.0, 0.0])
    near(per_row(Relative("batch", scale="none"), batch.replace(group_b=torch.arange(4))), [0.25, -0.75, 0.25, 0.25])


def test_a_group_of_one():
    batch = small([3.0, 1.0, 2.0], groups=[0, 1, 1])
    near(per_row(Relative(scale="none"), batch), [0.0, -0.5, 0.5])
    near(per_row(Relative(alone="raw", scale="none"), batch), [3.0, -0.5, 0.5])
    near(per_row(LengthWeighted(alone="raw"), batch), [3.0, -0.5, 0.5])
    with pytest.raises(InputError, match="one member"):
        LengthWeighted(alone="refuse")(batch)
    assert "batch.group_size is 1" in Relative().refuse(RunFacts(group_size=1))[0]
    assert Relative(alone="raw").refuse(RunFacts(group_size=1)) == []


def test_the_length_weighted_baseline():
    """Lengths 10 and 30, rewards 1 and 0: baseline 0.25, and Σ l A = 0."""
    batch = small([1, 0], [10, 30])
    near(per_row(LengthWeighted(), batch), [0.75, -0.25])
    near(LengthWeighted()(batch).sum(), 0.0)
    assert not LengthWeighted()(small([0.1] * 3, [3, 1, 2])).any()


def test_the_greedy_baseline():
    batch = small([9.0, 0.0], [3, 1], greedy_reward_b=[1.0, 1.0], token_reward_bt=[[0.1, 0.2, 0.3], [0.4]])
    near(GreedyBaseline()(batch), [[8.1, 8.2, 8.3], [-0.6, 0.0, 0.0]])
    near(GreedyBaseline(limit=5.0, gamma=0.5)(batch), [[0.725, 1.45, 2.8], [-0.1, 0.0, 0.0]])
    with pytest.raises(InputError, match="greedy_reward_b"):
        GreedyBaseline()(small([1.0]))


def test_a_sure_policy_has_no_advantage_over_its_greedy_completion():
    assert not GreedyBaseline()(small([1.0, 1.0], greedy_reward_b=[1.0, 1.0])).any()


def test_rewards_ones_and_given():
    batch = small([1.0, -2.0], [1, 2])
    near(RawReward(positive_only=True)(batch), [[1.0, 0.0], [0.0, 0.0]])
    near(Ones()(batch), [[1.0, 0.0], [1.0, 1.0]])
    near(Given()(batch.replace(advantage_bt=f64([[1.0, 2.0], [3.0, 4.0]]))), [[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(InputError, match="advantage_bt"):
        Given()(batch)


# --- normalisation --------------------------------------------------------------------------------------------------

SPREAD = small([1.0, 0.0], [1, 3])
ADV = f64([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


def test_whitening_over_tokens():
    """Four tokens 1, 0, 0, 0: mean 1/4, variance 3/16 (n) or 1/4 (n-1)."""
    near(Whiten(eps=0.0)(ADV, SPREAD)[0, 0], 3**0.5)
    near(Whiten(eps=0.0)(ADV, SPREAD)[1], [-(3**-0.5)] * 3)
    near(Whiten(variance="sample", eps=0.0)(ADV, SPREAD)[:, 0], [1.5, -0.5])
    near(Whiten(shift=False, variance="sample", eps=0.0)(ADV, SPREAD)[:, 0], [2.0, 0.0])


def test_whitening_over_sequences():
    """Two completions 1 and 0 count the same: mean 1/2, variance 1/4 (n) or 1/2 (n-1)."""
    near(Whiten(count="sequence", eps=0.0)(ADV, SPREAD)[:, 0], [1.0, -1.0])
    near(Whiten(count="sequence", variance="sample", eps=0.0)(ADV, SPREAD)[:, 0], [2**-0.5, -(2**-0.5)])


def test_where_epsilon_stands():
    near(Whiten(eps=0.5, variance="sample")(ADV, SPREAD)[0, 0], 0.75 / 0.75**0.5)
    near(Whiten(eps=0.5, variance="sample", eps_in="std")(ADV, SPREAD)[0, 0], 0.75)


def test_whitened_advantages_have_mean_zero_and_variance_one():
    batch = small([0.0] * 4, [3, 1, 4, 2], groups=[0, 0, 1, 1])
    adv_bt = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 7
    white_n = Whiten(eps=0.0)(adv_bt, batch)[batch.mask_bt]
    near(white_n.mean(), 0.0)
    near(white_n.var(unbiased=False), 1.0)


def test_whitening_by_group_and_over_active_tokens_only():
    batch = small([0.0] * 4, groups=[0, 0, 1, 1])
    adv_bt = f64([[1.0], [3.0], [10.0], [30.0]])
    near(Whiten(key="group", eps=0.0)(adv_bt, batch)[:, 0], [-1.0, 1.0, -1.0, 1.0])
    left = batch.replace(loss_mask_bt=torch.tensor([[True], [True], [False], [False]]))
    near(Whiten(eps=0.0)(adv_bt, left)[:, 0], [-1.0, 1.0, 0.0, 0.0])


def test_nothing_to_whiten():
    same = f64([[0.1, 0.0, 0.0], [0.1, 0.1, 0.1]])
    assert not Whiten()(same, SPREAD).any()
    near(Whiten(shift=False)(same, SPREAD), same)
    nothing = SPREAD.replace(loss_mask_bt=torch.zeros_like(SPREAD.mask_bt))
    assert not Whiten()(ADV, nothing).any()


def test_the_valid_fraction_makes_the_mean_one_over_valid_groups():
    """Groups {1,0}, {1,1}, {0,0}: two of six completions carry a signal, so advantages are tripled."""
    batch = small([1, 0, 1, 1, 0, 0], groups=[0, 0, 1, 1, 2, 2])
    adv_bt = Relative(scale="none")(batch)
    near(ValidFraction()(adv_bt, batch)[:, 0], [1.5, -1.5, 0, 0, 0, 0])
    near(ValidFraction()(adv_bt, batch).abs().mean(), adv_bt[:2].abs().mean())
    dead = small([1, 1])
    assert not ValidFraction()(Relative()(dead), dead).any()
