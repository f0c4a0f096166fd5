"""A second policy that samples whatever the rows at hand have too little of, for a policy that learns from all of them
as if they were its own (PROPS)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from grouprl.algorithms.objective.importance import flat, write
from grouprl.algorithms.objective.ratio import within
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.last_step import keep_ahead
from grouprl.algorithms.update.transitions import Transitions, actions_apart, inputs_of
from grouprl.algorithms.update.update import UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.core.outputs import LOG_PROB
from grouprl.protocols import ComparablePolicy, PolicyInputs


@part("update")
class AdaptedBehaviour(Transitions):
    """PROPS: after the policy's own steps, a copy that samples the next rollout is pushed away from actions at hand.

    The copy φ begins as the policy θ and minimises max(r, clip(r, 1-`bound`, 1+`bound`)) over the rollout's actions,
    r = π_φ/π_θ: actions that were taken more often than π_θ takes them become rarer. A step whose actions have moved
    by more than `kl_limit`, by the estimate r - 1 - log r, is not taken and ends it. `kl_coef` adds KL(π_θ || π_φ) of
    the whole distributions. Before the policy's own steps, old log-probs are those of θ.

    Between two steps the policy is φ; after the run's last one it is θ. Source: Corrado and Hanna 2023
    (arXiv:2311.08290), and the authors' code. *Differs from the authors' code*: the optimiser of φ is new for each
    rollout; φ is adapted once a rollout, theirs also within it.
    """

    reads_gradients = True
    metrics: ClassVar = {
        "behaviour_kl": Metric(
            unit="nats",
            words="estimated KL of the policy that samples next from the one that learns, on the actions at hand",
            good="at most about kl_limit; 0: the policy samples by itself",
        ),
        "behaviour_steps": Metric(unit="steps", words="optimiser steps of the policy that samples next"),
    }

    bound: Positive = 0.3
    lr: Positive = 1e-3
    passes: Count = 16
    parts: Count = 4
    kl_limit: Positive = 0.01
    kl_coef: NonNegative = 0.0
    equation = (
        "∇ over {size} actions of π_θ;  then φ = θ, φ ← φ - Adam_{lr:g} ∇ mean max(r, clip(r, 1-{bound:g}, "
        "1+{bound:g})),  r = π_φ/π_θ, until mean(r-1-log r) > {kl_limit:g};  the next rollout is of π_φ"
    )
    says = (
        "take the rollout's actions in random order, {size} per optimiser step, under the policy's own old "
        "log-probs; then make a copy, which samples the next rollout, take actions less often that the rows at "
        "hand have too many of, to a KL of about {kl_limit:g}"
    )

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the policy's steps, then adapt the copy; yield the metrics of each step, then those of the copy."""
        own = [parameter for _, parameter in learner.policy.named_parameters()]
        store = learner.context.state_of(self)
        if "weights" in store:
            write(own, store["weights"])
        yield from super().__call__(
            learner, prepared.replace(old_bt=_logp(learner, inputs_of(prepared)), behavior_bt=None)
        )
        store["weights"] = flat(own)
        yield self.adapt(learner, own, prepared)
        if learner.context.step + 1 == learner.context.steps:
            keep_ahead(learner.policy, store)
            write(own, store["weights"])

    def adapt(self, learner: UpdateSteps, own: Sequence[Tensor], prepared: Batch) -> dict[str, float]:
        """Move the weights from θ to φ, which is less likely to sample what `prepared` holds; return the metrics."""
        inputs = inputs_of(actions_apart(prepared))
        before_n, earlier = _logp(learner, inputs).flatten(), self._earlier(learner)
        adam, steps = torch.optim.Adam(list(own), self.lr), 0
        for chunk in self.chunks(len(before_n), learner.context.rng(self)):
            rows = inputs.rows(chunk.tolist())
            ratio_n = (_logp(learner, rows, grad=True).flatten() - before_n[chunk]).exp()
            if float(_distance(ratio_n.detach())) > self.kl_limit:
                break
            loss = pushed_away(ratio_n, self.bound).mean()
            if earlier is not None:
                loss = loss + self.kl_coef * learner.policy.kl_from(earlier, rows, grad=True).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            steps += 1
        learner.optimizer.zero_grad()
        moved = _distance((_logp(learner, inputs).flatten() - before_n).exp())
        return {"behaviour_kl": float(moved), "behaviour_steps": float(steps)}

    def chunks(self, count: int, luck: np.random.Generator) -> Iterator[np.ndarray]:
        """Yield the numbers of the actions of each step, pass by pass."""
        for _ in range(self.passes if count else 0):
            yield from np.array_split(luck.permutation(count), min(self.parts, count))

    def _earlier(self, learner: UpdateSteps) -> ComparablePolicy[PolicyInputs] | None:
        """Return θ as a copy to compare with; None without `kl_coef`."""
        if self.kl_coef == 0:
            return None
        if not isinstance(learner.policy, ComparablePolicy):
            raise InputError(
                f"the update '{self.name}' with kl_coef on {type(learner.policy).__name__}",
                "it reads the KL of whole distributions, which only policies over arrays compare",
                "Take model: mlp, or leave kl_coef at 0",
            )
        return cast("ComparablePolicy[PolicyInputs]", learner.policy.copied(trainable=False))

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse sampling ahead: the next rollout is of the copy."""
        late = "adapted_behaviour chooses who samples the next rollout. Set run.async_steps to 0"
        return [late] * (run.async_steps > 0)


def pushed_away(ratio_n: Tensor, bound: float) -> Tensor:
    """Return max(r, clip(r, 1-bound, 1+bound)): PPO's clipped loss of an advantage of -1, [N]."""
    return torch.maximum(ratio_n, within(ratio_n, 1 - bound, 1 + bound))


def _distance(ratio_n: Tensor) -> Tensor:
    """Return the mean of r - 1 - log r; 0 without actions."""
    return (ratio_n - 1 - ratio_n.log()).mean() if len(ratio_n) else ratio_n.new_zeros(())


def _logp(learner: UpdateSteps, inputs: PolicyInputs, *, grad: bool = False) -> Tensor:
    """Return the policy's log-probs [B,T], on the CPU."""
    found: Tensor = learner.policy.evaluate(inputs, (LOG_PROB,), grad=grad)[LOG_PROB].cpu()
    return found
