"""The policy that encodes what is left anew: rules of policies, permutations, sizes, and what it cannot see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from grouprl.core.errors import InputError
from grouprl.envs.construction import PROBLEMS, Tsp
from grouprl.envs.construction.world import rest_numbers
from grouprl.policy import ArrayInputs, Build, Quotient
from grouprl.protocols import Box, DictSpace, Discrete, Spaces
from grouprl.testing import check_policy

SMALL = {"width": 8, "layers": 2, "heads": 2}


def rows(problem: Any, count: int = 4) -> ArrayInputs:
    """Random solutions, cut to different lengths."""
    seen, taken, legal = [], [], []
    for row in range(count):
        instance, luck = problem.sample(np.random.default_rng(row)), np.random.default_rng(row)
        building = problem.begin(instance, luck)
        views, choices, masks = [], [], []
        while (legal_n := building.legal()).any() and len(choices) < row + 1:
            views.append(rest_numbers(building.rest(problem.map_of(instance)), np.zeros(0)))
            masks.append(legal_n)
            choices.append(int(luck.choice(np.flatnonzero(legal_n))))
            building.take(choices[-1])
        seen.append({"rest": np.array(views)})
        taken.append(np.array(choices))
        legal.append(np.array(masks))
    return ArrayInputs.of(seen, taken, legal_bta=legal)


def quotient(problem: Any, **build: Any) -> Quotient:
    """A policy whose layers already do something: they begin as the identity."""
    policy = Quotient(Build(spaces=problem.rest_spaces(0), seed=1, dtype=torch.float64, **build), **SMALL)
    for net in (policy.module, policy.critic):
        for layer in () if net is None else net.layers:
            torch.nn.init.constant_(layer.read, 0.7)
            torch.nn.init.constant_(layer.thought, 0.4)
    return policy


@pytest.mark.parametrize("name", [name for name, each in PROBLEMS.items() if each.rest_features])
def test_it_keeps_the_rules_of_policies(name: str) -> None:
    problem = PROBLEMS[name](5)
    check_policy(quotient(problem, values=True), rows(problem), values=True)


def test_scores_follow_a_permutation_of_the_nodes() -> None:
    policy, order = quotient(Tsp(6)), torch.tensor([3, 0, 4, 1, 5, 2])
    seen = rows(Tsp(6)).seen(policy.device, policy.dtype)
    moved = replace(seen, observation={"rest": seen.observation["rest"][:, order]})
    ours, theirs = (policy.module(x).detach() for x in (seen, moved))
    assert torch.allclose(ours[:, order], theirs, atol=1e-12)
    assert float((ours - ours.mean(-1, keepdim=True)).abs().max()) > 1e-3


def test_nodes_that_are_gone_are_not_read() -> None:
    policy = quotient(Tsp(6))
    seen = rows(Tsp(6)).seen(policy.device, policy.dtype)
    rest = seen.observation["rest"]
    gone = rest[..., 0] == 0
    assert bool(gone.any())
    noisy = rest.clone()
    noisy[..., 1:] = torch.where(gone[..., None], 7.0, rest[..., 1:])
    ours, theirs = (policy.module(replace(seen, observation={"rest": x})) for x in (rest, noisy))
    assert torch.allclose(ours[~gone], theirs[~gone], atol=1e-12)


def test_a_rest_among_more_places_is_the_same_rest() -> None:
    """Weights of five cities score the rest of nine: four that are gone change nothing."""
    small, large = quotient(Tsp(5)), quotient(Tsp(9))
    large.load_trainable_state(small.trainable_state())
    seen = rows(Tsp(5)).seen(small.device, small.dtype)
    wider = torch.nn.functional.pad(seen.observation["rest"], (0, 0, 0, 4))
    theirs = large.module(replace(seen, observation={"rest": wider}))
    assert torch.allclose(small.module(seen), theirs[:, :5], atol=1e-12)


def test_layers_begin_as_the_identity_and_learn_to_be_more() -> None:
    policy = Quotient(Build(spaces=Tsp(5).rest_spaces(0), dtype=torch.float64), **SMALL)
    given = rows(Tsp(5))
    seen = given.seen(policy.device, policy.dtype)
    plain = policy.module.score(policy.module.embed(seen.observation["rest"][..., 1:]))[..., 0]
    assert torch.equal(policy.module(seen), plain)
    policy.backward(given, {"log_prob": torch.ones(len(given), given.width, dtype=torch.float64)})
    assert all(float(layer.read.grad.abs()) > 0 for layer in policy.module.layers)


def test_other_observations_and_sizes_that_do_not_divide_are_told() -> None:
    with pytest.raises(InputError, match=r"task\.state"):
        Quotient(Build(spaces=Tsp(4).spaces))
    with pytest.raises(InputError, match="reads DictSpace"):
        Quotient(Build(spaces=Spaces(Box((3,)), Discrete(2))))
    with pytest.raises(InputError, match="reads the rest"):
        Quotient(Build(spaces=Spaces(DictSpace({"rest": Box((3,))}), Discrete(2))))
    with pytest.raises(InputError, match="Heads must divide"):
        Quotient(Build(spaces=Tsp(4).rest_spaces(0)), width=6, heads=4)
