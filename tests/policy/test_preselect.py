"""The policy that preselects tasks before it points at one: rules of policies, both stages, one gradient for both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_pointer import rows

from grouprl import InputError
from grouprl.envs.construction import PROBLEMS, TaskAllocation
from grouprl.policy import Build, Pointer, Preselect
from grouprl.policy.vectors.preselect import preselected
from grouprl.testing import check_policy

SMALL = {"width": 8, "layers": 1, "heads": 2}


def policy_of(problem: Any, keep: int, **build: Any) -> Preselect:
    return Preselect(Build(spaces=problem.spaces, seed=1, dtype=torch.float64, **build), keep=keep, **SMALL)


def seen_of(problem: Any, policy: Preselect) -> Any:
    return rows(problem).seen(policy.device, policy.dtype)


@pytest.mark.parametrize("name", ["allocation", "assignment", "tsp"])
def test_it_keeps_the_rules_of_policies(name: str) -> None:
    """Every task may be chosen: what is stored may be of a policy that kept others."""
    problem = PROBLEMS[name](6)
    check_policy(policy_of(problem, 6, values=True), rows(problem), values=True)


def test_the_most_alike_legal_nodes_are_kept_by_hand() -> None:
    alike_pn = torch.tensor([[3.0, 1.0, 2.0, 0.0], [3.0, 1.0, 2.0, 0.0], [3.0, 1.0, 2.0, 0.0]])
    legal_pn = torch.tensor([[True] * 4, [False, True, True, True], [False, False, False, True]])
    assert preselected(alike_pn, legal_pn, 2).tolist() == [
        [True, False, True, False],
        [False, True, True, False],
        [False, False, False, True],
    ]
    assert bool(preselected(alike_pn, None, 9).all())


@pytest.mark.parametrize("keep", [1, 2])
def test_no_more_tasks_than_are_kept_can_be_chosen(keep: int) -> None:
    problem = TaskAllocation(8)
    policy = policy_of(problem, keep)
    seen = seen_of(problem, policy)
    probs_na = policy.distribution(seen, 1.0).probs.detach()  # type: ignore[attr-defined]
    assert ((probs_na > 0).sum(-1) == keep).all()
    alike_pn = policy.module.similarity(seen, policy.module.asked(seen)[1])  # type: ignore[operator]
    assert torch.equal(probs_na > 0, preselected(alike_pn, seen.legal_na, keep))


def test_with_all_tasks_kept_and_nothing_alike_it_is_the_pointer() -> None:
    problem = TaskAllocation(6)
    policy = policy_of(problem, 3)
    pointer = Pointer(Build(spaces=problem.spaces, seed=2, dtype=torch.float64), **SMALL)
    own = dict(policy.module.named_parameters())
    with torch.no_grad():
        for name, parameter in pointer.module.named_parameters():
            own[name].copy_(parameter)
        policy.module.task.weight.zero_()  # type: ignore[union-attr]
    assert torch.allclose(policy.logp(rows(problem)), pointer.logp(rows(problem)), atol=1e-12)


def test_both_stages_learn_from_one_log_prob() -> None:
    problem = TaskAllocation(8)
    policy = policy_of(problem, 2)
    seen = seen_of(problem, policy)
    taken_n = policy.distribution(seen, 1.0).probs.argmax(-1)  # type: ignore[attr-defined]
    policy.distribution(seen, 1.0).log_prob(taken_n).sum().backward()
    for name in ("entity", "task", "point", "glimpse"):
        gradients = [p.grad for n, p in policy.module.named_parameters() if n.startswith(name) and n.endswith("weight")]
        assert gradients
        assert any(g is not None and bool(g.any()) for g in gradients), name


def test_the_gradient_is_that_of_finite_differences() -> None:
    problem = TaskAllocation(6)
    policy = policy_of(problem, 2)
    seen = seen_of(problem, policy)
    taken_n = policy.distribution(seen, 1.0).probs.argmax(-1)  # type: ignore[attr-defined]
    weight = policy.module.entity.weight

    def value() -> torch.Tensor:
        return policy.distribution(seen, 1.0).log_prob(taken_n).sum()

    (slope,) = torch.autograd.grad(value(), weight)
    for place in ((0, 0), (3, 5)):
        with torch.no_grad():
            weight[place] += 1e-6
            above = float(value())
            weight[place] -= 2e-6
            below = float(value())
            weight[place] += 1e-6
        assert float(slope[place]) == pytest.approx((above - below) / 2e-6, abs=1e-6)


def test_the_order_of_the_tasks_does_not_matter() -> None:
    problem, order = TaskAllocation(8), torch.tensor([2, 0, 3, 1])
    policy = policy_of(problem, 2)
    seen = seen_of(problem, policy)
    moved = replace(
        seen,
        context={"map": seen.context["map"][:, order]},
        legal_na=seen.legal_na[:, order],
        observation={
            **seen.observation,
            "here": order.argsort()[seen.observation["here"]],
            "nodes": seen.observation["nodes"][:, order],
        },
    )
    ours, theirs = (policy.distribution(x, 1.0).probs.detach() for x in (seen, moved))  # type: ignore[attr-defined]
    assert torch.allclose(theirs, ours[:, order], atol=1e-12)


def test_an_entity_keeps_one_task_at_least() -> None:
    with pytest.raises(InputError, match="at least one task"):
        policy_of(TaskAllocation(4), 0)
