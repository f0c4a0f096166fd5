"""The policy by which a fleet picks at once: rules of policies, ranks by probability, permutations, preferences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from grouprl.core.errors import InputError
from grouprl.envs.construction import Tsp
from grouprl.envs.construction.fleet import DeliveryFleet, ProfiledFleet
from grouprl.policy import ArrayInputs, Build, Pointers
from grouprl.policy.vectors.array_distributions import RankedPicks, drawn, masked
from grouprl.records.examples import Example
from grouprl.testing import check_policy

SMALL = {"width": 8, "layers": 1, "heads": 2}


def rows(make: Any, count: int = 4) -> ArrayInputs:
    """Random rounds of two instances, cut to different lengths."""
    seen, taken, legal, context = [], [], [], []
    for row in range(count):
        world, luck = make(), np.random.default_rng(row)
        shown = world.reset(Example("one", "", {"seed": row % 2}), row % 2)
        context.append(shown.context)
        views, choices, masks = [], [], []
        while shown.legal is not None and len(choices) < row + 1:
            views.append(shown.values)
            masks.append(shown.legal)
            picks = [luck.choice(np.flatnonzero(legal_n)) for legal_n in world.legal()]
            choices.append([*picks, *luck.permutation(len(picks))])
            shown = world.step(choices[-1]).observation
        seen.append({name: np.array([view[name] for view in views]) for name in views[0]})
        taken.append(np.array(choices))
        legal.append(np.array(masks))
    return ArrayInputs.of(seen, taken, context_b=context, legal_bta=legal)


def pointers(world: DeliveryFleet, **build: Any) -> Pointers:
    return Pointers(Build(spaces=world.spaces, seed=1, dtype=torch.float64, **build), **SMALL)


@pytest.mark.parametrize(
    "make", [lambda: DeliveryFleet(4, 2), lambda: ProfiledFleet(4, 3, forbidden=0.4), lambda: DeliveryFleet(3, 1)]
)
def test_it_keeps_the_rules_of_policies(make: Any) -> None:
    check_policy(pointers(make(), values=True), rows(make), values=True)


def test_ranks_follow_the_probabilities_of_the_picks_by_hand() -> None:
    logits = [torch.log(torch.tensor([[0.5, 0.3, 0.2]])), torch.log(torch.tensor([[0.1, 0.6, 0.3]]))]
    found = RankedPicks(logits)
    assert found.completed(torch.tensor([[0, 1]])).tolist() == [[0, 1, 1, 0]]  # 0.5 < 0.6
    assert found.completed(torch.tensor([[0, 2]])).tolist() == [[0, 2, 0, 1]]  # 0.5 > 0.3
    assert found.completed(torch.tensor([[1, 2]])).tolist() == [[1, 2, 0, 1]]  # equal: by number
    for ranks in ([0, 1], [1, 0]):
        assert float(found.log_prob(torch.tensor([[0, 1, *ranks]]))) == pytest.approx(np.log(0.5 * 0.6))
    parts = [Categorical(logits=each) for each in logits]
    assert float(found.entropy()) == pytest.approx(float(sum(each.entropy() for each in parts)))
    assert float(kl_divergence(found, RankedPicks(logits[::-1]))) > 0
    # without node 1, of vehicle 0 is left 5/7, of vehicle 1 3/4: the latter is now the likelier
    legal = torch.tensor([[1, 0, 1, 1, 0, 1, 1, 1, 1, 1]], dtype=torch.bool)
    without = masked(found, legal)
    assert isinstance(without, RankedPicks)
    assert without.completed(torch.tensor([[0, 2]])).tolist() == [[0, 2, 1, 0]]
    assert drawn(without, [0], greedy=True).tolist() == [[0, 2, 1, 0]]


def test_probabilities_do_not_depend_on_the_order_of_nodes_and_vehicles() -> None:
    world = ProfiledFleet(4, 3)
    policy = pointers(world)
    seen = rows(lambda: ProfiledFleet(4, 3)).seen(policy.device, policy.dtype)
    order, crew = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([2, 0, 1])
    legal_pkn = seen.legal_na[:, :15].unflatten(1, (3, 5))[:, crew][:, :, order]
    moved = replace(
        seen,
        context={
            "map": seen.context["map"][:, order],
            "fleet": seen.context["fleet"][:, crew],
            "profile": seen.context["profile"][:, crew][:, :, order],
        },
        legal_na=torch.cat([legal_pkn.flatten(1), seen.legal_na[:, 15:]], -1),
        observation={
            "here": order.argsort()[seen.observation["here"][:, crew]],
            "vehicles": seen.observation["vehicles"][:, crew],
            "open": seen.observation["open"][:, order],
        },
    )
    ours, theirs = (policy.module(x).detach() for x in (seen, moved))
    assert torch.allclose(ours[:, crew][:, :, order], theirs, atol=1e-12)


def test_only_a_vehicle_with_a_preference_sees_the_nodes_otherwise() -> None:
    policy = pointers(DeliveryFleet(4, 2))
    seen = rows(lambda: DeliveryFleet(4, 2)).seen(policy.device, policy.dtype)
    liked = seen.context["profile"].clone()
    liked[:, 1, 2] = 1.0
    ours, theirs = (policy.module(replace(seen, context={**seen.context, "profile": x})) for x in (liked * 0, liked))
    assert torch.equal(ours[:, 0], theirs[:, 0])
    assert not torch.allclose(ours[:, 1], theirs[:, 1])


def test_vehicles_read_one_another() -> None:
    policy = pointers(DeliveryFleet(4, 2))
    seen = rows(lambda: DeliveryFleet(4, 2)).seen(policy.device, policy.dtype)
    later = seen.observation["vehicles"].clone()
    later[:, 1, 1] += 1.0
    ours, theirs = (
        policy.module(replace(seen, observation={**seen.observation, "vehicles": x}))
        for x in (seen.observation["vehicles"], later)
    )
    assert not torch.allclose(ours[:, 0], theirs[:, 0])


def test_other_tasks_and_sizes_that_do_not_divide_are_told() -> None:
    with pytest.raises(InputError, match="acts with MultiDiscrete"):
        Pointers(Build(spaces=Tsp(4).spaces))
    with pytest.raises(InputError, match="Heads must divide"):
        Pointers(Build(spaces=DeliveryFleet(3, 2).spaces), width=6, heads=4)
