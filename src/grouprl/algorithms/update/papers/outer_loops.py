"""Outer loops around the optimiser: a step that looks ahead first, and rounds with momentum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.last_step import keep_ahead, weights_of
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.numbers import Count, ShareBelowOne

GAPS = ("logp_gap_mean", "logp_gap_max")
"""Differences of sampler and trainer, which say nothing where the policy went back after it had sampled."""


@part("update")
class Extragradient(Update):
    """Steps in twos: the first looks ahead, the second is taken from where the first began (EGPO, arXiv:2503.08942).

    θ' = θ - η∇L(θ; opponents from π_θ), then θ ← θ - η∇L(θ; opponents from π_θ'): the second step's completions are
    sampled by the policy that looked ahead, its gradient is that at θ. Weights and optimiser go back before it. In its
    second steps a loss must not read log-probs of the start of the update, which are those of π_θ'.
    """

    reads_gradients = True  # weights are exchanged, which a policy in parts does in ways of its own

    says = "every other step only looks ahead: the next is taken from where it began, on what it samples"
    equation = "θ' = θ - η·∇L(θ; y ~ π_θ);  θ ← θ - η·∇L(θ; y ~ π_θ')"

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps, after going back if the last rollout's looked ahead."""
        store = learner.context.state_of(self)
        returning = "weights" in store
        if returning:
            put_back(learner, store.pop("weights"), store.pop("optimizer"))
        else:
            store["weights"], store["optimizer"] = copied(learner)
        for step in learner.steps(prepared):
            record = learner.take(step)
            yield {name: x for name, x in record.items() if not (returning and name in GAPS)}

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse an odd number of steps, the last of which would only look ahead, and sampling ahead of training."""
        odd = f"extragradient takes steps in pairs, and the run has {run.steps}. Use an even number of steps"
        late = "extragradient needs completions of the policy that looked ahead. Set run.async_steps to 0"
        return [odd] * (run.steps % 2) + [late] * (run.async_steps > 0)


@part("update")
class RoundMomentum(Update):
    """After each round of `every` steps the weights move by `momentum` of the round's way again (arXiv:2410.06293).

    θ_{t+1} = ϑ_{t+1} + α(ϑ_{t+1} - ϑ_t), ϑ the weights at the end of a round: Nesterov's extrapolation, which for
    log-linear policies is π ∝ π'_{t+1}·(π'_{t+1}/π'_t)^α, π' of weights ϑ. The run's last round ends without it.
    """

    reads_gradients = True  # weights are moved, which a policy in parts does in ways of its own

    every: Count = 100
    momentum: ShareBelowOne = 0.3
    says = "after each {every} steps the weights move by {momentum:g} times the way of these steps again"
    equation = "θ ← ϑ + {momentum:g}·(ϑ - ϑ_before)"

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps; extrapolate at the end of a round."""
        store, number = learner.context.state_of(self), learner.context.step + 1
        if "reached" not in store:
            store["reached"] = weights_of(learner.policy)
        for step in learner.steps(prepared):
            yield learner.take(step)
        if number % self.every:
            return
        before, reached = store["reached"], weights_of(learner.policy)
        learner.policy.load_trainable_state(
            {name: x + self.momentum * (x - before[name].to(x.device)) for name, x in reached.items()}
        )
        store["reached"] = reached
        if number == learner.context.steps:
            keep_ahead(learner.policy, store)
            learner.policy.load_trainable_state(reached)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect without momentum, or in a run of a single round."""
        if self.momentum == 0:
            return ["round_momentum has no effect: momentum is 0"]
        return [f"round_momentum has no effect: a round of {self.every} steps is the whole run"] * (
            self.every >= run.steps
        )


def copied(learner: UpdateSteps) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return copies of the weights and of the optimiser's state."""
    state = learner.optimizer.state_dict()
    moments = {
        number: {name: x.clone() if isinstance(x, Tensor) else x for name, x in own.items()}
        for number, own in state["state"].items()
    }
    return weights_of(learner.policy), {"state": moments, "param_groups": state["param_groups"]}


def put_back(learner: UpdateSteps, weights: dict[str, Tensor], optimizer: dict[str, Any]) -> None:
    """Load copies of weights and optimiser; the learning rate stays that of the step."""
    rates = [group["lr"] for group in learner.optimizer.param_groups]
    learner.policy.load_trainable_state(weights)
    learner.optimizer.load_state_dict(optimizer)
    for group, rate in zip(learner.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
