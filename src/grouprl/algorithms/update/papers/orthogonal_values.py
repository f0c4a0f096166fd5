"""A value step whose backward gradient keeps only what does not undo the forward one (ODICE)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, cast

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.advantage.returns import token_rewards
from grouprl.algorithms.critic.implicit_values import ImplicitValues, slope_above
from grouprl.algorithms.objective.importance import clear
from grouprl.algorithms.part import part
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.outputs import VALUE
from grouprl.protocols import FinalInputs, Policy, PolicyInputs, has_memory

SMALLEST = 1e-10
"""Smallest square of a gradient that another is projected on, as in the authors' code."""


@part("update")
class OrthogonalValues(Update):
    """Values step along g_f + g_V + η·(g_b - (g_f·g_b/|g_f|²)·g_f), the policy along its own gradient (ODICE).

    g_f is the gradient of λF(δ) by V(s), g_b the same by V(s'), g_V that of (1 - λ)V(s); each difference takes its
    other value from the step's beginning. With η 0 it is the update without this part. Source: Mao et al., ICLR 2024
    (arXiv:2402.00348), algorithm 1. Needs `implicit_values`.
    """

    reads_gradients = True
    positions_alone = True

    eta: Annotated[float, Field(ge=0)] = 1.0
    reads = ("value_bt",)
    says = "values also learn backward, from each state to the next (weight {eta:g}), orthogonally to how they learn"
    equation = "g_f + g_V + {eta:g}·(g_b - (g_f·g_b/|g_f|²)·g_f)"
    idle_at = ("eta", 0, "orthogonal_values has no effect: eta is 0")

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps; yield the metrics of each."""
        critic = learner.method.critic
        if not isinstance(critic, ImplicitValues):
            raise InputError(
                f"the update '{self.name}' with the critic '{getattr(critic, 'name', None)}'",
                "it projects the two gradients of implicit_values",
                "Take that critic, or leave the update out",
            )
        if has_memory(learner.policy):
            raise InputError(
                f"the update '{self.name}' with a policy that remembers",
                "it scores the state after an episode alone, and its value depends on what came before",
                "Take model: mlp",
            )
        if not isinstance(prepared.inputs, FinalInputs):
            raise InputError(
                f"the update '{self.name}' on {type(prepared.inputs).__name__}",
                "only episodes of arrays show the state after each action",
                "Leave it out",
            )
        for step in learner.steps(prepared):
            if bool(step.active_bt.any()):
                clear(learner.policy)
                metrics = learner.accumulate(step)
                self.add_backward(learner.policy, critic, step)
                yield {**metrics, "grad_norm": learner.apply()}

    def add_backward(self, policy: Policy, critic: ImplicitValues, step: Batch) -> None:
        """Add η·coef·(g_b - its part along g_f) to the gradients of a step."""
        own = [parameter for _, parameter in policy.named_parameters()]
        before = [None if p.grad is None else p.grad.clone() for p in own]
        with torch.no_grad():
            value_bt = policy.evaluate(step.inputs, (VALUE,))[VALUE].to(step.reward_b)
            final_b = _finals(policy, step)
        forward_bt, backward_bt, last_b = pulls(critic, step, value_bt, final_b)
        forward = _gradient(policy, own, step, forward_bt, torch.zeros_like(last_b))
        backward = _gradient(policy, own, step, backward_bt, last_b)
        along = _dot(forward, backward) / max(_dot(forward, forward), SMALLEST)
        for parameter, was, f, b in zip(own, before, forward, backward, strict=True):
            more = self.eta * critic.coef * (b - along * f)
            parameter.grad = more if was is None else was + more


def pulls(critic: ImplicitValues, step: Batch, value_bt: Tensor, final_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the derivatives of λF(δ) of a step by its values: by V(s) [B,T], by V(s') [B,T], and by V of last states
    [B].

    `value_bt` and `final_b` are the values as they are now; those of the step's beginning are in the batch.
    """
    active_bt, count = step.active_bt, step.active_bt.sum().clamp(min=1)
    paid_bt, old_bt = token_rewards(step), step.need("value_bt", critic.name)
    was_bt = step.need("return_bt", critic.name) - paid_bt  # γV_old(s')
    share = critic.lam / count
    forward_bt = -share * slope_above(paid_bt + was_bt - value_bt, critic.divergence) * active_bt
    follows_bt = torch.zeros_like(value_bt)
    follows_bt[:, :-1] = value_bt[:, 1:]
    last_bt = step.last_token_bt()
    follows_bt = torch.where(last_bt, final_b[:, None], follows_bt)
    back_bt = critic.gamma * share * slope_above(paid_bt + critic.gamma * follows_bt - old_bt, critic.divergence)
    back_bt = back_bt * active_bt
    onto_bt = torch.zeros_like(value_bt)
    onto_bt[:, 1:] = torch.where(last_bt, 0, back_bt)[:, :-1]
    ended_b = torch.ones_like(step.mask_bt[:, 0]) if step.truncated_b is None else ~step.truncated_b
    return forward_bt, onto_bt, (back_bt * last_bt).sum(1) * ~ended_b


def _ends(step: Batch) -> tuple[list[int], PolicyInputs | None]:
    """Return the rows that a limit cut, and the inputs of their last observations (None: there are none)."""
    rows = [] if step.truncated_b is None else step.truncated_b.nonzero()[:, 0].tolist()
    finals = cast("FinalInputs", step.inputs).finals()
    return (rows, finals.rows(rows)) if rows and finals is not None else ([], None)


def _finals(policy: Policy, step: Batch) -> Tensor:
    """Return [B] the value of the observation after the last action where a limit cut the row, else 0."""
    found_b, (rows, finals) = torch.zeros_like(step.reward_b), _ends(step)
    if finals is not None:
        found_b[rows] = policy.evaluate(finals, (VALUE,))[VALUE][:, 0].to(found_b)
    return found_b


def _gradient(policy: Policy, own: Sequence[Tensor], step: Batch, by_bt: Tensor, by_last_b: Tensor) -> list[Tensor]:
    """Return the gradient of Σ by·V over positions and last observations, one tensor for each parameter."""
    clear(policy)
    policy.backward(step.inputs, {VALUE: by_bt})
    rows, finals = _ends(step)
    if finals is not None:
        policy.backward(finals, {VALUE: by_last_b[rows][:, None]})
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in own]


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    return float(sum((a.double() * b.double()).sum() for a, b in zip(one, other, strict=True)))
