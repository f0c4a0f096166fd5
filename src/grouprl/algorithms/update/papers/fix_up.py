"""Steps under a penalty on the KL, then more steps on the penalty alone until no state is too far (FixPO)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from grouprl.algorithms.part import part
from grouprl.algorithms.update.transitions import Transitions, actions_apart, inputs_of
from grouprl.algorithms.update.update import UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.protocols import ComparablePolicy, PolicyInputs

CHUNK = 1024
"""States of one step of the second phase, as in the paper."""


@part("update")
class FixUp(Transitions):
    """FixPO: steps on loss + β·mean KL, then steps on β·mean KL alone until KL(π_old || π) ≤ ε in every state.

    The KL is that of the whole distributions. β has an Adam of its own, which follows β·(ε - C·max KL) after every
    step and keeps β at 0 or above; the second phase goes over all states of the rollout, 1024 at a time, until none is
    outside. Source: Zentner et al. 2023 (arXiv:2312.05405). *Differs from the paper*: after `sweeps`
    passes with a state outside, the weights go back to those before the update; the authors repeat them without end.
    """

    reads_gradients = True

    epsilon: Positive = 0.2
    target: Positive = 2.0
    start: NonNegative = 1.0
    beta_lr: Positive = 0.01
    sweeps: Count = 100
    equation = (
        "∇[L + β·mean KL] over {size} actions;  β follows β·({epsilon:g} - {target:g}·max KL);  then ∇[β·mean KL] "
        "until max KL ≤ {epsilon:g}"
    )
    says = (
        "take the rollout's actions in random order, {size} per optimiser step, under a penalty on the KL "
        "from the policy before the update; then step on the penalty alone until the KL is at most "
        "{epsilon:g} in every state"
    )

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps of both phases; yield the metrics of each step of the first, then those of the second."""
        tether = Tether(self, learner, _comparable(learner.policy, self.name))
        kept, apart = learner.policy.trainable_state(), actions_apart(prepared)
        for step in self.drawn(learner, apart):
            metrics = learner.accumulate(step)
            worst = tether.add(inputs_of(step))
            norm = learner.apply()
            yield {**metrics, "grad_norm": norm, "kl_penalty": tether.weight}
            tether.follow(worst)
        steps, inside = self.repair(learner, tether, apart)
        if not inside:
            learner.policy.load_trainable_state(kept)
        tether.remember()
        yield {"fix_steps": float(steps), "fix_undone": float(not inside), "kl_worst": tether.worst(inputs_of(apart))}

    def repair(self, learner: UpdateSteps, tether: Tether, apart: Batch) -> tuple[int, bool]:
        """Take the steps of the second phase; return how many, and whether every state is inside at the end."""
        steps, chunks = 0, torch.arange(apart.size[0]).split(CHUNK)
        for _ in range(self.sweeps):
            before = steps
            for chunk in chunks:
                inputs = inputs_of(apart.rows(chunk))
                if tether.worst(inputs) > self.epsilon:
                    worst = tether.add(inputs)
                    learner.apply()
                    tether.follow(worst)
                    steps += 1
            if steps == before:
                return steps, True
        return steps, tether.worst(inputs_of(apart)) <= self.epsilon


class Tether:
    """The penalty that draws a policy back to what it was when the update began, and its weight β."""

    def __init__(self, part: FixUp, learner: UpdateSteps, policy: ComparablePolicy[PolicyInputs]) -> None:
        self.part, self.policy = part, policy
        self.before = cast("ComparablePolicy[PolicyInputs]", policy.copied(trainable=False))
        self.store = learner.context.state_of(part)
        self.beta = self.store.get("beta", torch.tensor(float(part.start))).clone().requires_grad_()
        self.adam = torch.optim.Adam([self.beta], part.beta_lr)
        if "adam" in self.store:
            self.adam.load_state_dict(self.store["adam"])

    @property
    def weight(self) -> float:
        """The weight of the penalty, β."""
        return float(self.beta.detach())

    def worst(self, inputs: PolicyInputs) -> float:
        """Return the largest KL of a state; 0 without states."""
        kl_bt = self._kl(inputs)
        return float(kl_bt.max()) if kl_bt.numel() else 0.0

    def add(self, inputs: PolicyInputs) -> float:
        """Add the gradient of β·mean KL to the parameters'; return the largest KL."""
        kl_bt = self._kl(inputs, grad=True)
        (self.weight * kl_bt.mean()).backward()
        return float(kl_bt.detach().max())

    def follow(self, worst: float) -> None:
        """Take one step of β on β·(ε - C·max KL): it grows while C·max KL is above ε, and falls below."""
        self.beta.grad = torch.full_like(self.beta, self.part.epsilon - self.part.target * worst)
        self.adam.step()
        with torch.no_grad():
            self.beta.clamp_(min=0)

    def remember(self) -> None:
        """Keep β and its Adam for the next update."""
        self.store["beta"], self.store["adam"] = self.beta.detach().clone(), self.adam.state_dict()

    def _kl(self, inputs: PolicyInputs, *, grad: bool = False) -> Tensor:
        return self.policy.kl_from(self.before, inputs, grad=grad)


def _comparable(policy: object, name: str) -> ComparablePolicy[PolicyInputs]:
    if not isinstance(policy, ComparablePolicy):
        raise InputError(
            f"the update '{name}' on {type(policy).__name__}",
            "it bounds the KL of whole distributions, which only policies over arrays compare",
            "Take model: mlp, or a method that bounds the ratios of actions: method: {name: ppo}",
        )
    return policy
