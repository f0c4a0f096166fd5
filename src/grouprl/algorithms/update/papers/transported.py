"""Momentum whose gradients are taken ahead of the weights, so that old ones need no correction (N-PG-IGT)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grouprl.algorithms.objective.importance import clear, flat, gradient, kept, write
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.last_step import keep_ahead
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative

if TYPE_CHECKING:
    from grouprl.core.json_types import State


@part("update")
class Transported(Update):
    """N-PG-IGT: θ_{t+1} = θ_t - γ_t·d_t/|d_t| with d_t = (1 - η_t)·d_{t-1} + η_t·∇L(ϑ_t), and completions of ϑ_t.

    ϑ_t = θ_t + (1 - η_t)/η_t·(θ_t - θ_{t-1}) is ahead of the weights by as much as the momentum is behind them: for a
    quadratic loss, d_t is the mean of gradients at θ_t. η_t = (2/(t+2))^`power`, γ_t = lr·(2/(t+2))^`decay`, t from 0.
    Between two steps the policy is ϑ; after the run's last one it is θ. Source: Fatkhullin et al. 2023
    (arXiv:2302.01734).
    """

    reads_gradients = True

    power: NonNegative = 0.8
    decay: NonNegative = 1.0
    says = (
        "step by the rate along the direction of a momentum whose gradients are taken ahead of the weights, on "
        "completions that were sampled there; rate and momentum fall with the steps (powers {decay:g} and {power:g})"
    )
    equation = (
        "θ ← θ - γ_t·d/|d|,  d ← (1 - η_t)·d + η_t·∇L(θ + (1 - η_t)/η_t·(θ - θ_before)),  η_t = (2/(t+2))^{power:g},  "
        "γ_t = lr·(2/(t+2))^{decay:g}"
    )

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the one step of the rollout and move on to where the next is sampled; yield its metrics."""
        own = [parameter for _, parameter in learner.policy.named_parameters()]
        store = learner.context.state_of(self)
        for step in learner.steps(prepared):
            clear(learner.policy)
            metrics = learner.accumulate(step)
            slope_p = gradient(own)
            clear(learner.policy)
            lr = float(learner.optimizer.param_groups[0]["lr"])
            self.move(own, slope_p, lr, store)
            if learner.context.step + 1 == learner.context.steps:
                keep_ahead(learner.policy, store)
                write(own, store["weights"])
            yield {**metrics, "grad_norm": float(slope_p.norm())}

    def move(self, own: Sequence[Tensor], slope_p: Tensor, lr: float, store: State) -> None:
        """Take the step of weights and momentum in `store`, and leave the policy ahead of them."""
        step = int(store.get("step", 0))
        at_p = kept(store, "weights", flat(own))
        eta = self.share(step)
        d_p = (1 - eta) * kept(store, "momentum", torch.zeros_like(slope_p)) + eta * slope_p
        norm = float(d_p.norm())
        next_p = at_p - lr * (2 / (step + 2)) ** self.decay * d_p / norm if norm > 0 else at_p
        write(own, next_p + (1 / self.share(step + 1) - 1) * (next_p - at_p))
        store.update(step=step + 1, weights=next_p, momentum=d_p)

    def share(self, step: int) -> float:
        """Return η of a step, from 0: how much of the momentum is the newest gradient."""
        return float((2 / (step + 2)) ** self.power)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse several steps per rollout and sampling ahead: each gradient needs completions of its own weights."""
        several = (
            f"transported takes one step per rollout, and the run takes {run.updates_per_rollout}. Set "
            "batch.minibatches and batch.epochs to 1"
        )
        late = "transported needs completions of the weights ahead. Set run.async_steps to 0"
        return [several] * (run.updates_per_rollout > 1) + [late] * (run.async_steps > 0)

    def idle(self, run: RunFacts) -> list[str]:
        """Say which of the optimiser's settings have no effect, and when nothing looks ahead."""
        found = ["optim.betas, weight_decay and grad_clip have no effect: transported sets its step by optim.lr alone"]
        if self.power == 0:
            found.append("transported looks nowhere ahead: power is 0, so that each step is along its own gradient")
        return found
