"""Policies with bounded actions or several likely places, and observations that are read normalised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal

from grouprl.core.errors import InputError
from grouprl.policy import ArrayInputs, Build, Mlp, NormalMixture, Squashed
from grouprl.policy.vectors.bounded_distributions import MixtureOfNormals, SquashedNormal
from grouprl.policy.vectors.moments import ObservationMoments
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.testing import check_policy

SPACES = Spaces(observation=Box((3,)), action=Box((2,), (-2.0, 0.0), (2.0, 1.0)))
GRID = torch.linspace(-12, 12, 4801, dtype=torch.float64)


def rows(spaces: Spaces = SPACES, seed: int = 0) -> ArrayInputs:
    luck, lengths = np.random.default_rng(seed), (4, 1, 3, 2)
    actions = [luck.uniform((-1.5, 0.1), (1.5, 0.9), (n, 2)).astype(np.float32) for n in lengths]
    return ArrayInputs.of([luck.normal(size=(n, 3)).astype(np.float32) for n in lengths], actions)


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def squashed(mean: float, std: float, low: float = -2.0, high: float = 2.0) -> SquashedNormal:
    return SquashedNormal(double([[mean]]), double([[std]]), double([low]), double([high]))


def test_the_density_of_a_squashed_normal_has_its_jacobian() -> None:
    # a = 2·tanh(u): at a = 0 the slope is 2, so p(0) = N(0; 0, 1)/2; at u = 1 it is 2·(1 - tanh²1) = 0.83994868.
    one = squashed(0.0, 1.0)
    assert float(one.log_prob(double([[0.0]]))) == pytest.approx(-0.5 * math.log(2 * math.pi) - math.log(2))
    at_one = -0.5 * math.log(2 * math.pi) - 0.5 - math.log(2 * (1 - math.tanh(1) ** 2))
    assert float(one.log_prob(double([[2 * math.tanh(1)]]))) == pytest.approx(at_one)
    assert one.mode.tolist() == [[0.0]]


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.3), (-1.5, 0.8)])
def test_a_squashed_density_sums_to_one_and_has_its_entropy(mean: float, std: float) -> None:
    one = squashed(mean, std)
    action = torch.linspace(-2 + 1e-5, 2 - 1e-5, 400001, dtype=torch.float64)
    log_n = one.log_prob(action[:, None])
    assert float(torch.trapezoid(log_n.exp(), action)) == pytest.approx(1, abs=2e-4)
    assert float(one.entropy()) == pytest.approx(-float(torch.trapezoid(log_n.exp() * log_n, action)), abs=2e-3)


def test_a_narrow_squashed_normal_has_a_negative_entropy_and_shifts_into_its_box() -> None:
    assert float(squashed(0.0, 0.01).entropy()) < -2
    assert squashed(0.0, 0.1, low=3.0, high=5.0).mode.tolist() == [[4.0]]


def test_gradients_of_a_squashed_log_prob_are_those_of_finite_differences() -> None:
    action = double([[0.4], [-1.2]])

    def log_prob(mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        one = SquashedNormal(mean, std, double([-2.0]), double([2.0]))
        return one.log_prob(action) + one.entropy()

    given = (double([[0.3], [-0.2]]).requires_grad_(), double([[0.5], [0.9]]).requires_grad_())
    assert torch.autograd.gradcheck(log_prob, given)


def mixture(logits: Any, means: Any, stds: Any) -> MixtureOfNormals:
    return MixtureOfNormals(double([logits]), double([means])[..., None], double([stds])[..., None])


def test_a_mixture_of_one_is_a_normal() -> None:
    one, plain = mixture([0.3], [0.5], [2.0]), Independent(Normal(double([[0.5]]), double([[2.0]])), 1)
    action = double([[1.7]])
    assert float(one.log_prob(action)) == pytest.approx(float(plain.log_prob(action)))
    assert float(one.entropy()) == pytest.approx(float(plain.entropy()))


def test_the_density_of_a_mixture_is_the_weighted_sum() -> None:
    # weights 3/4 and 1/4; at 0 the densities are N(0; -1, 0.5²) = 0.10798193 and N(0; 2, 1) = 0.05399097.
    one = mixture([math.log(3), 0.0], [-1.0, 2.0], [0.5, 1.0])
    assert float(one.log_prob(double([[0.0]])).exp()) == pytest.approx(0.75 * 0.10798193 + 0.25 * 0.05399097, rel=1e-6)
    assert float(torch.trapezoid(one.log_prob(GRID[:, None]).exp(), GRID)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("gap", "slack"), [(0.0, 1e-6), (1.5, 0.2), (9.0, 1e-3)])
def test_the_entropy_of_a_mixture_is_a_bound_that_is_exact_at_its_ends(gap: float, slack: float) -> None:
    one = mixture([0.2, -0.4], [-gap / 2, gap / 2], [0.4, 0.4])
    log_n = one.log_prob(GRID[:, None])
    true = -float(torch.trapezoid(log_n.exp() * log_n, GRID))
    assert true - 1e-6 <= float(one.entropy()) <= true + slack


@pytest.mark.parametrize("kind", [Squashed, NormalMixture])
def test_the_policies_keep_the_rules(kind: type[Mlp]) -> None:
    check_policy(kind(Build(SPACES, seed=1), hidden=(8,), normalise=True), rows())


def test_squashed_actions_are_never_outside_and_are_scored_as_they_were_sampled() -> None:
    policy = Squashed(Build(SPACES, seed=1), hidden=(8,), log_std=1.5)
    inputs = rows()
    turn = policy.act(inputs.seen(policy.device, policy.dtype), range(10), [1.0] * 10)
    low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])
    assert bool(((turn.action_r >= low) & (turn.action_r <= high)).all())
    made_bta = torch.full_like(inputs.action_bt, torch.nan)
    again = ArrayInputs(inputs.observation_bt, inputs.action_bt.clone(), inputs.length_b, origin_bta=made_bta)
    again.action_bt[inputs.present_bt()], made_bta[inputs.present_bt()] = turn.action_r, turn.origin_r
    assert torch.equal(policy.logp(again)[inputs.present_bt()], turn.logp_r)


def test_experts_begin_apart() -> None:
    policy = NormalMixture(Build(SPACES, seed=1), hidden=(8,), experts=3)
    found = policy.distribution(rows().seen(policy.device, policy.dtype), 1.0)
    assert isinstance(found, MixtureOfNormals)
    first = found.parts.base_dist.mean[0, :, 0].tolist()
    assert first == pytest.approx([-0.5, 0.0, 0.5], abs=0.02)


def test_a_mixture_keeps_two_peaks_where_a_normal_keeps_one() -> None:
    """A bandit that pays for -1 and for 1, by gradients of the expected reward."""
    spaces, luck = Spaces(observation=Box((3,)), action=Box((1,))), torch.Generator().manual_seed(0)
    spread = {}
    for kind, settings in ((Mlp, {}), (NormalMixture, {"experts": 2})):
        policy = kind(Build(spaces, seed=1), hidden=(8,), log_std=-0.5, **settings)
        optimizer = torch.optim.Adam(policy.parameters(), 0.02)
        for _ in range(150):
            action = 3 * torch.rand(600, 1, generator=luck) - 1.5
            reward = torch.exp(-8 * (action.abs() - 1).square())[:, 0]
            where = ArrayInputs.of([np.zeros((600, 3), np.float32)], [action.numpy()])
            logp = policy.score(where, ("log_prob",))["log_prob"][0]
            loss = -(reward * logp.exp()).mean()  # the expected reward, up to a factor
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        density = policy.logp(ArrayInputs.of([np.zeros((2, 3), np.float32)], [np.array([[-1.0], [1.0]], np.float32)]))
        spread[kind.__name__] = float(density.exp().min())
    assert spread["NormalMixture"] > 2 * spread["Mlp"]


@pytest.mark.parametrize(
    ("kind", "space", "said"),
    [(Squashed, Box((2,)), "finite bounds"), (NormalMixture, Discrete(3), "acts with vectors")],
)
def test_spaces_that_do_not_fit_are_refused(kind: type[Mlp], space: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        kind(Build(Spaces(observation=Box((3,)), action=space)))


def test_moments_add_up_whatever_the_pieces() -> None:
    luck = torch.Generator().manual_seed(3)
    x = torch.randn(40, 2, generator=luck, dtype=torch.float64) * double([3.0, 0.1]) + double([100.0, -1.0])
    whole, parts = ObservationMoments(2), ObservationMoments(2)
    whole.observe(x)
    for piece in x.split([1, 25, 14]):
        parts.observe(piece)
    for one in (whole, parts):
        one.renew()
        assert torch.allclose(one(x).mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-6)
        assert torch.allclose(one(x).std(0, unbiased=False), torch.ones(2, dtype=torch.float64), atol=1e-3)
    assert torch.allclose(whole(x), parts(x))
    assert float(whole(double([[1e9, -1.0]]))[0, 0]) == 10.0


def test_statistics_count_from_the_next_step_on_and_are_weights() -> None:
    policy = Mlp(Build(SPACES, seed=1), hidden=(8,), normalise=True)
    inputs = rows()
    before = policy.logp(inputs)
    policy.observe(inputs)
    assert torch.equal(policy.logp(inputs), before)  # the rollout is scored as it was sampled
    policy.renew()
    assert not torch.allclose(policy.logp(inputs), before)
    other = Mlp(Build(SPACES, seed=2), hidden=(8,), normalise=True)
    other.load_trainable_state(policy.trainable_state())
    assert torch.equal(other.logp(inputs), policy.logp(inputs))
    assert {name for name, _ in policy.named_parameters()}.isdisjoint({"moments.mean", "moments.used_std"})
