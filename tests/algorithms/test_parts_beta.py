"""Beta normalisation: the density, its fit, its limits."""

from __future__ import annotations

import math

import pytest
import torch

import grouprl
from grouprl.algorithms.advantage.papers.beta import BetaNormalized, beta_shape, inverse_density, moments
from grouprl.algorithms.building import build_part
from grouprl.core.errors import InputError
from small import f64, near, small


def fit(p_b: torch.Tensor, groups: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return beta_shape(p_b, torch.tensor(groups), torch.ones_like(p_b))


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (1.5, 1.5), (2.0, 7.5), (12.0, 3.0)])
def test_the_density_is_torch_s(alpha, beta):
    p_b = torch.linspace(0.05, 0.95, 7, dtype=torch.float64)
    expected = torch.distributions.Beta(f64(alpha), f64(beta)).log_prob(p_b).neg().exp()
    near(inverse_density(p_b, f64(alpha), f64(beta), 1e30), expected, 1e-9 * float(expected.max()))


def test_the_standard_deviation_is_a_beta_density():
    p_b = f64(0.1, 0.25, 0.5, 0.9)
    near(1 / inverse_density(p_b, f64(1.5), f64(1.5), 1e6), 8 / math.pi * (p_b * (1 - p_b)).sqrt())


def test_outside_the_open_interval_nothing_is_scaled():
    near(inverse_density(f64(0, 1), f64(2), f64(3), 1e6), [1, 1])


def test_the_weight_is_bounded():
    near(inverse_density(f64(0.001, 0.5), f64(50.0), f64(50.0), 1e6)[:1], [1e6])


def test_moments_count_each_prompt_once():
    mean, variance = moments(f64(0.5, 0.5, 0.5, 0.5, 0.25), torch.tensor([3, 3, 3, 3, 8]), torch.ones(5).double())
    near(mean, 0.375)
    near(variance, 1 / 32)


def test_the_fit_has_the_moments():
    """Beta(a, b) with mean 0.375 and variance 1/32 has a = 2.4375, b = 4.0625; a third of each, plus one."""
    near(torch.stack(fit(f64(0.5, 0.25), [0, 1])), [1 + 2.4375 / 3, 1 + 4.0625 / 3])


@pytest.mark.parametrize("p", [[0.3, 0.3, 0.3], [0.1 * 3, 0.3, 0.1 + 0.2], [0.4]])
def test_without_spread_there_is_nothing_to_fit(p):
    near(torch.stack(fit(f64(*p).reshape(-1), list(range(len(p))))), [1, 1])


def test_extreme_pass_rates_fit_a_flat_density():
    """Half the prompts solved, half hopeless: mean(1-mean)/variance - 1 is negative, the shape stays 1."""
    near(torch.stack(fit(f64(0, 1, 0, 1), [0, 1, 2, 3])), [1, 1])


def test_rewards_on_another_scale():
    plain = BetaNormalized()(small([1, 0, 1, 0, 0], groups=[0, 0, 1, 1, 1]))
    near(BetaNormalized(low=-1.0, high=1.0)(small([1, -1, 1, -1, -1], groups=[0, 0, 1, 1, 1])), plain)


def test_components_are_judged_one_by_one():
    groups = [0, 0, 1, 1, 1]
    one, two = [1.0, 0, 1, 0, 0], [0.0, 1, 1, 1, 0]
    batch = small([9.0] * 5, groups=groups).replace(rewards={"a": f64(one), "b": f64(two)})
    expected = (BetaNormalized()(small(one, groups=groups)) + BetaNormalized()(small(two, groups=groups))) / 2
    near(BetaNormalized(components=("a", "b"))(batch), expected)
    with pytest.raises(InputError, match="no reward component 'c'"):
        BetaNormalized(components=("c",))(batch)


def test_half_a_density_and_an_empty_range_are_refused():
    with pytest.raises(InputError, match="alpha"):
        build_part("advantage", "beta_normalized", {"alpha": 2.0})
    with pytest.raises(InputError, match="low"):
        build_part("advantage", "beta_normalized", {"low": 1.0, "high": 1.0})


def test_equal_pass_rates_leave_the_centred_reward():
    batch = small([1, 0, 0, 1], groups=[0, 0, 1, 1])
    near(grouprl.method("bnpo").prepare(batch).advantage_bt[:, 0], [0.5, -0.5, -0.5, 0.5])
