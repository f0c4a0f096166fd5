"""The policy that points at nodes: rules of policies, permutations, masks, and one encoding per map."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from grouprl.core.errors import InputError
from grouprl.envs.construction import PROBLEMS, Tsp
from grouprl.policy import ArrayInputs, Build, Pointer
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.testing import check_policy

SMALL = {"width": 8, "layers": 1, "heads": 2}


def rows(problem, count: int = 4, seed: int = 0) -> ArrayInputs:
    """Random solutions of two instances, cut to different lengths."""
    maps, seen, taken, legal = [], [], [], []
    for row in range(count):
        instance, luck = problem.sample(np.random.default_rng(seed + row % 2)), np.random.default_rng(row)
        building = problem.begin(instance, luck)
        views, choices, masks = [], [], []
        while (legal_n := building.legal()).any() and len(choices) < row + 2:
            view = building.view()
            views.append(view)
            masks.append(legal_n)
            choices.append(int(luck.choice(np.flatnonzero(legal_n))))
            building.take(choices[-1])
        maps.append({"map": problem.map_of(instance).astype(np.float32)})
        arrays = {
            "here": [v.here for v in views],
            "nodes": [v.nodes_nd for v in views],
            "whole": [v.whole_s for v in views],
        }
        seen.append({name: np.array(x, np.int64 if name == "here" else np.float32) for name, x in arrays.items()})
        taken.append(np.array(choices))
        legal.append(np.array(masks))
    return ArrayInputs.of(seen, taken, context_b=maps, legal_bta=legal)


def pointer(problem, **build) -> Pointer:
    return Pointer(Build(spaces=problem.spaces, seed=1, dtype=torch.float64, **build), **SMALL)


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_keeps_the_rules_of_policies(name: str) -> None:
    problem = PROBLEMS[name](5)
    check_policy(pointer(problem, values=True), rows(problem), values=True)


def test_probabilities_do_not_depend_on_the_order_of_the_nodes() -> None:
    problem, order = Tsp(5), torch.tensor([3, 0, 4, 1, 2])
    policy = pointer(problem)
    seen = rows(problem).seen(policy.device, policy.dtype)
    back = order.argsort()
    moved = replace(
        seen,
        context={"map": seen.context["map"][:, order]},
        legal_na=seen.legal_na[:, order],
        observation={
            **seen.observation,
            "here": back[seen.observation["here"]],
            "nodes": seen.observation["nodes"][:, order],
        },
    )
    ours, theirs = (policy.distribution(x, 1.0).probs.detach() for x in (seen, moved))
    assert torch.allclose(ours[:, order], theirs, atol=1e-12)
    assert float((ours - ours.mean(-1, keepdim=True)).abs().max()) > 1e-3


def test_a_map_is_encoded_once_for_all_rows_that_have_it() -> None:
    problem = Tsp(5)
    policy, given = pointer(problem), rows(problem, count=6)
    encoded = []
    policy.module.encoder.register_forward_hook(lambda module, args, out: encoded.append(len(out)))
    policy.evaluate(given, ("log_prob",))
    assert encoded == [2]


def test_illegal_nodes_are_never_chosen_nor_looked_at() -> None:
    problem = Tsp(5)
    policy, given = pointer(problem), rows(problem)
    seen = given.seen(policy.device, policy.dtype)
    asked = policy.module.asked(seen)[0]
    noisy = {**seen.observation, "nodes": seen.observation["nodes"].masked_fill(~seen.legal_na[..., None], 7.0)}
    assert torch.allclose(policy.module.asked(replace(seen, observation=noisy))[0], asked, atol=1e-12)
    turn = policy.act(seen, range(len(seen.row_n)), [1.0] * len(seen.row_n))
    assert bool(seen.legal_na.gather(1, turn.action_r[:, None]).all())


def test_tasks_without_a_map_and_sizes_that_do_not_divide_are_told() -> None:
    with pytest.raises(InputError, match="pointer"):
        Pointer(Build(spaces=Spaces(Box((3,)), Discrete(2))))
    with pytest.raises(InputError, match="Heads must divide"):
        Pointer(Build(spaces=Tsp(4).spaces), width=6, heads=4)


def test_the_critic_is_drawn_apart_from_the_policy_and_anew_alike() -> None:
    policy = pointer(Tsp(5), values=True)
    assert policy.critic is not None
    weights = [torch.cat([p.flatten() for p in net.parameters()]) for net in (policy.module, policy.critic)]
    assert not torch.equal(*weights)
    torch.testing.assert_close(torch.cat([p.flatten() for p in policy.new_critic().parameters()]), weights[1].float())
