"""A policy that represents achievements: the change of its encoder, its memory, and what it foresees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grouprl import InputError
from grouprl.policy import Achievements, ArrayInputs, Build, Mlp
from grouprl.protocols import Box, DictSpace, Discrete, Spaces
from grouprl.records.unlocking import FROM, NOW, TO
from grouprl.testing import check_policy

OWN = Box((3,))
PLAIN = Spaces(OWN, Discrete(4))
SHOWN = Spaces(DictSpace(dict.fromkeys((NOW, FROM, TO), OWN)), Discrete(4))


def policy_of(spaces: Spaces = SHOWN, values: bool = True) -> Achievements:
    policy = Achievements(Build(spaces, seed=1, values=values, dtype=torch.float64), hidden=(8, 6))
    luck = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=luck))
    return policy


def rows(lengths: tuple[int, ...] = (2, 4, 3), *, memory: bool = True) -> ArrayInputs:
    luck = np.random.default_rng(0)

    def seen(*shape: int) -> object:
        one = {name: luck.standard_normal((*shape, 3)).astype(np.float32) for name in (NOW, FROM, TO)}
        return one if memory else one[NOW]

    return ArrayInputs.of(
        [seen(n) for n in lengths], [luck.integers(0, 4, n) for n in lengths], final_b=[seen() for _ in lengths]
    )


@pytest.mark.parametrize("memory", [True, False])
def test_it_keeps_the_contract_of_policies(memory: bool) -> None:
    check_policy(policy_of(SHOWN if memory else PLAIN), rows(memory=memory), values=True)


def test_an_achievement_is_the_change_of_the_encoder_and_zeros_stand_for_nothing() -> None:
    policy = policy_of()
    luck = torch.Generator().manual_seed(1)
    before, after = torch.randn(5, 3, generator=luck).double(), torch.randn(5, 3, generator=luck).double()
    encoder = policy.module["encoder"]  # type: ignore[index]
    change = encoder(after) - encoder(before)
    expected = change / change.norm(dim=-1, keepdim=True)
    assert torch.allclose(policy.represent(before, after), expected)
    assert torch.allclose(policy.represent(after, before), -expected)
    ends = -encoder(before) / encoder(before).norm(dim=-1, keepdim=True)
    assert torch.allclose(policy.represent(before, 0 * after), ends)
    assert not policy.represent(before, before).any()


def test_policy_and_critic_read_the_memory_as_a_constant() -> None:
    policy, inputs = policy_of(), rows()
    other = ArrayInputs(
        {**inputs.observation_bt, TO: inputs.observation_bt[TO] + 1},  # type: ignore[dict-item, index]
        inputs.action_bt,
        inputs.length_b,
    )
    for name in ("log_prob", "value"):
        assert not torch.allclose(policy.evaluate(inputs, (name,))[name], policy.evaluate(other, (name,))[name])
    found = policy.evaluate(inputs, ("value",), grad=True)["value"]
    (slope,) = torch.autograd.grad(found.sum(), policy.module["encoder"][0].bias)  # type: ignore[index]
    seen = inputs.seen(policy.device, policy.dtype)
    latent_nh = policy.module["encoder"](seen.observation[NOW])  # type: ignore[index]
    weight = policy.critic[0].weight[0, :6]  # type: ignore[index]
    (expected,) = torch.autograd.grad((latent_nh @ weight.detach()).sum(), policy.module["encoder"][0].bias)  # type: ignore[index]
    assert torch.allclose(slope, expected)


def test_what_is_foreseen_depends_on_the_action_and_not_on_the_split() -> None:
    policy, inputs = policy_of(), rows()
    whole_nh = policy.foresee(inputs)
    assert torch.allclose(whole_nh.norm(dim=-1), torch.ones(9, dtype=torch.float64))
    apart = inputs.positions()
    parts = torch.cat([policy.foresee(apart.rows(chunk)) for chunk in ([0, 1], [2], range(3, 9))])
    assert torch.allclose(whole_nh, parts)
    acted = ArrayInputs(inputs.observation_bt, (inputs.action_bt + 1) % 4, inputs.length_b)
    assert not torch.allclose(whole_nh, policy.foresee(acted))


def test_the_kl_goes_from_the_policy_to_the_earlier_one() -> None:
    policy, inputs = policy_of(), rows()
    earlier = policy.copied(trainable=False)
    assert not policy.kl_to(earlier, inputs).any()
    with torch.no_grad():
        policy.module["mean"][0].bias.add_(torch.tensor([1.0, 0, 0, 0]).double())  # type: ignore[index]
    seen = inputs.seen(policy.device, policy.dtype)
    p_na, q_na = (x.distribution(seen, 1.0).probs for x in (policy, earlier))  # type: ignore[attr-defined]
    kl_bt = policy.kl_to(earlier, inputs)
    assert torch.allclose(kl_bt[inputs.present_bt()], (p_na * (p_na / q_na).log()).sum(-1))
    assert not kl_bt[~inputs.present_bt()].any()
    assert kl_bt.requires_grad


def test_what_it_cannot_encode_is_refused() -> None:
    with pytest.raises(InputError, match="in a layer or more"):
        Achievements(Build(PLAIN), hidden=())
    with pytest.raises(InputError, match="without a context"):
        Achievements(Build(Spaces(OWN, Discrete(2), context=DictSpace({"map": OWN}))))
    assert isinstance(policy_of(PLAIN), Mlp)
