"""A team's values: each agent's best action is part of the team's best, and targets stay until they are renewed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from grouprl import InputError
from grouprl.policy import ArrayInputs, Build, TeamValues
from grouprl.policy.vectors.acting_values import FollowingModule
from grouprl.policy.vectors.team_values import MonotonicMixer, SumMixer
from grouprl.protocols import Box, DictSpace, Discrete, MultiDiscrete, Spaces, ValueLearner
from grouprl.testing import check_value_learner

SPACES = Spaces(DictSpace({"own": Box((2, 3))}), MultiDiscrete((3, 3)))


def rows(lengths: tuple[int, ...] = (2, 4, 3), seed: int = 0, *, finals: bool = True) -> ArrayInputs:
    luck = np.random.default_rng(seed)

    def seen(*shape: int) -> dict[str, np.ndarray]:
        return {"own": luck.standard_normal((*shape, 2, 3)).astype(np.float32)}

    return ArrayInputs.of(
        [seen(n) for n in lengths],
        [luck.integers(0, 3, (n, 2)) for n in lengths],
        final_b=[seen() for _ in lengths] if finals else None,
    )


def team(
    mixer: str = "monotonic", explore: float = 0.3, seed: int = 0, dtype: torch.dtype = torch.float64
) -> TeamValues:
    policy = TeamValues(Build(SPACES, seed=seed, dtype=dtype), hidden=(8,), mixer=mixer, width=4, explore=explore)
    luck = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name.startswith("single"):
                parameter.copy_(torch.randn(parameter.shape, generator=luck))
    policy.follow()
    return policy


@pytest.mark.parametrize("mixer", ["monotonic", "sum"])
def test_it_keeps_the_rules_of_a_value_learner(mixer: str) -> None:
    policy = team(mixer)
    assert isinstance(policy, ValueLearner)
    check_value_learner(policy, rows())


def test_the_team_s_value_rises_with_every_agent_s() -> None:
    """∂Q_tot/∂q_k ≥ 0 in random states; a mixer without absolute values breaks it."""
    torch.manual_seed(0)
    mixer = MonotonicMixer(6, 2, 4).double()
    state_ns, q_nk = (
        torch.randn(200, 6, dtype=torch.float64),
        torch.randn(200, 2, dtype=torch.float64, requires_grad=True),
    )
    (slope_nk,) = torch.autograd.grad(mixer(q_nk, state_ns).sum(), q_nk)
    assert bool((slope_nk >= 0).all())
    assert float(slope_nk.mean()) > 0.1
    assert bool((mixer.first(state_ns) < 0).any()), "the maps themselves have either sign"


def test_the_mixers_by_hand() -> None:
    """One hidden number, zero maps and their biases: |-2|·elu(|1|·q_1 + |-3|·q_2 - 1) + b."""
    mixer = MonotonicMixer(2, 2, 1)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.zero_()
        mixer.first.bias.copy_(torch.tensor([1.0, -3.0]))
        mixer.first_bias.bias.fill_(-1.0)
        mixer.second.bias.fill_(-2.0)
        mixer.second_bias[-1].bias.fill_(0.5)
    state_ns = torch.ones(2, 2)
    found_n = mixer(torch.tensor([[0.5, 0.5], [0.5, -0.5]]), state_ns)
    assert found_n.tolist() == pytest.approx([2 * 1.0 + 0.5, 2 * (np.exp(-2.0) - 1) + 0.5])
    assert SumMixer()(torch.tensor([[0.5, -2.0]]), state_ns).tolist() == [-1.5]


def joint_values(policy: TeamValues, inputs: ArrayInputs) -> Tensor:
    """The value of each of the nine joint actions at every position, [N,3,3]."""
    seen = inputs.seen(policy.device, policy.dtype)
    q_nka = policy.agent_values(seen)
    pairs = [
        policy.mixed(torch.stack([q_nka[:, 0, a], q_nka[:, 1, b]], -1), seen)
        for a, b in itertools.product(range(3), repeat=2)
    ]
    return torch.stack(pairs, -1).unflatten(-1, (3, 3))


@pytest.mark.parametrize("mixer", ["monotonic", "sum"])
def test_the_agents_own_best_actions_are_together_the_best(mixer: str) -> None:
    policy, inputs = team(mixer), rows((5, 7, 6), seed=3)
    joint_n33 = joint_values(policy, inputs).flatten(1)
    chosen = policy.act(inputs.seen(policy.device, policy.dtype), [0] * 18, [1.0] * 18, greedy=True).action_r
    value_n = joint_n33.gather(1, (3 * chosen[:, 0] + chosen[:, 1])[:, None])[:, 0]
    assert torch.allclose(value_n, joint_n33.amax(1))
    assert len({tuple(each) for each in chosen.tolist()}) > 1


def test_the_best_after_an_action_is_the_best_of_all_joint_actions_at_the_next_observation() -> None:
    policy, inputs = team(), rows((2, 3))
    found_bt = policy.evaluate(inputs, ("best_after",))["best_after"]
    longer = inputs.extended()
    assert longer is not None
    best_n = joint_values(policy, longer).flatten(1).amax(1).tolist()
    assert found_bt[0].tolist() == pytest.approx([*best_n[1:3], 0])
    assert found_bt[1].tolist() == pytest.approx(best_n[4:7])
    unknown_bt = policy.evaluate(rows((2, 3), finals=False), ("best_after",))["best_after"]
    assert unknown_bt[:, 0].tolist() == pytest.approx(found_bt[:, 0].tolist())
    assert unknown_bt[0, 1] == unknown_bt[1, 2] == 0


def test_random_actions_have_their_share_and_the_best_the_rest() -> None:
    policy, inputs = team(explore=0.3), rows((4,))
    seen = inputs.seen(policy.device, policy.dtype)
    parts = policy.distribution(seen, 1.0).parts  # type: ignore[attr-defined]
    best_nk = policy.agent_values(seen).argmax(-1)
    for agent in range(2):
        chance_na = parts[agent].probs
        assert chance_na.gather(1, best_nk[:, agent, None])[:, 0].tolist() == pytest.approx([0.8] * 4)
        assert chance_na.sum(1).tolist() == pytest.approx([1.0] * 4)
        assert chance_na.amin().item() == pytest.approx(0.1)
    calm = policy.distribution(seen, 0.5).parts[0].probs  # type: ignore[attr-defined]
    assert calm.amin().item() == pytest.approx(0.05)
    policy.explore(0.0)
    assert bool(policy.logp(inputs).isfinite().all())


def test_illegal_actions_are_neither_taken_nor_thought_best() -> None:
    policy, inputs = team(explore=0.6), rows((3,))
    seen = inputs.seen(policy.device, policy.dtype)
    best_n = policy.agent_values(seen)[:, 0].argmax(-1)
    legal_na = torch.ones(3, 6, dtype=torch.bool)
    legal_na[torch.arange(3), best_n] = False

    barred = replace(seen, legal_na=legal_na)
    chance_na = policy.distribution(barred, 1.0).parts[0].probs  # type: ignore[attr-defined]
    assert chance_na[torch.arange(3), best_n].tolist() == [0, 0, 0]
    assert sorted(chance_na[0].tolist())[1:] == pytest.approx([0.3, 0.7])


def test_an_agent_decides_by_its_own_row_alone() -> None:
    policy, inputs = team(), rows((4,))
    seen = inputs.seen(policy.device, policy.dtype)
    own = seen.observation["own"].clone()
    own[:, 1] += 1

    moved = policy.agent_values(replace(seen, observation={"own": own}))
    same = policy.agent_values(seen)
    assert torch.equal(moved[:, 0], same[:, 0])
    assert not torch.equal(moved[:, 1], same[:, 1])


def test_a_follower_is_what_the_module_was() -> None:
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    follower, x_nf = FollowingModule(module), torch.randn(4, 2)
    assert not list(follower.parameters())
    before = module(x_nf)
    with torch.no_grad():
        module[0].weight.add_(1.0)
    assert torch.equal(follower(x_nf), before)
    follower.follow(module)
    assert torch.equal(follower(x_nf), module(x_nf))


def test_what_it_cannot_play_is_refused() -> None:
    for spaces in (
        Spaces(DictSpace({"own": Box((3, 3))}), MultiDiscrete((3, 3))),
        Spaces(DictSpace({"own": Box((2, 3))}), MultiDiscrete((3, 4))),
        Spaces(DictSpace({"all": Box((2, 3))}), MultiDiscrete((3, 3))),
    ):
        with pytest.raises(InputError, match="a row for each agent"):
            TeamValues(Build(spaces))
    with pytest.raises(InputError, match="team_values"):
        TeamValues(Build(Spaces(Box((3,)), Discrete(2))))
    with pytest.raises(InputError, match="monotonic or sum"):
        TeamValues(Build(SPACES), mixer="mean")
