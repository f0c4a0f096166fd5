"""Momentum whose old gradients are brought to the weights as they are now by the curvature along the step (HARPG)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from grouprl.algorithms.data_part import DataPart
from grouprl.algorithms.objective.importance import Fisher
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.algorithms.vectors import vectors_of
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative
from grouprl.protocols.vectors import V, VectorSpace
from grouprl.records.samples import subset


@part("update")
class HessianAided(DataPart, Update):
    """(N-)HARPG: d_t = (1 - η_t)·(d_{t-1} + v_t) + η_t·∇L(θ_t), v_t an estimate of ∇L(θ_t) - ∇L(θ_{t-1}).

    v_t = H(θ_q)(θ_t - θ_{t-1}) at θ_q = q·θ_t + (1 - q)·θ_{t-1}, q uniform: over q its mean is the difference of the
    gradients, exactly. H is the Hessian of the expected loss of completions sampled at θ_q, so that it includes how
    their chances move: ∇²Φ + ∇Φ·∇log pᵀ. Products with it come from a central difference of the gradient along the
    step, and from rows weighted by how their log-probs move along it; each step with v_t samples as many completions
    again. The step is γ_t·d_t, or with `normalised` γ_t·d_t/|d_t|; η_t = (2/(t+2))^`power`, γ_t = lr·(2/(t+2))^`decay`.
    Source: Fatkhullin et al. 2023 (arXiv:2302.01734). *Differs from the paper*: gradients are those of a whole rollout.
    """

    power: NonNegative = 1.0
    decay: NonNegative = 1.0
    normalised: bool = True
    equation = (
        "θ ← θ - γ_t·d/|d|,  d ← (1 - η_t)·(d + H(θ_q)(θ - θ_before)) + η_t·∇L(θ),  θ_q = qθ + (1-q)θ_before,  "
        "η_t = (2/(t+2))^{power:g},  γ_t = lr·(2/(t+2))^{decay:g}"
    )

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the one step of the rollout; yield its metrics."""
        store = learner.context.state_of(self)
        with vectors_of(learner.policy, learner.optimizer, store) as space:
            for step in learner.steps(prepared):
                yield self.step(learner, space, step)

    def step(self, learner: UpdateSteps, space: VectorSpace[V], step: Batch) -> dict[str, float]:
        """Take one step; return its metrics."""
        store = learner.context.state_of(self)
        space.clear()
        metrics = learner.accumulate(step)
        slope_p, at_p, number = space.gradient(), space.weights(), int(store.get("step", 0))
        eta, before_p, momentum_p = self.share(number), space.kept("before"), space.kept("momentum")
        way_p = at_p - (at_p if before_p is None else before_p)
        drift_p = space.zeros()
        if eta < 1 and bool(way_p.any()):
            drift_p = self.drift(learner, space, at_p, way_p)
        d_p = (1 - eta) * ((space.zeros() if momentum_p is None else momentum_p) + drift_p) + eta * slope_p
        space.clear()
        lr = float(learner.optimizer.param_groups[0]["lr"])
        space.write(at_p - lr * (2 / (number + 2)) ** self.decay * self.direction(d_p))
        space.keep("before", at_p)
        space.keep("momentum", d_p)
        store["step"] = number + 1
        return {**metrics, "grad_norm": float(slope_p.norm())}

    def share(self, step: int) -> float:
        """Return η of a step, from 0: how much of the momentum is the newest gradient."""
        return float((2 / (step + 2)) ** self.power)

    def direction(self, d_p: V) -> V:
        """Return d, of length 1 if `normalised`; 0 stays 0."""
        norm = float(d_p.norm())
        return d_p / norm if self.normalised and norm > 0 else d_p

    def drift(self, learner: UpdateSteps, space: VectorSpace[V], at_p: V, way_p: V) -> V:
        """Sample completions between the two last weights and return H·way there, [P]; the weights are `at_p` after."""
        context = learner.context
        between_p = at_p - float(context.rng(self).random()) * way_p
        space.write(between_p)
        with context.acting(learner.policy):
            rows = context.sample(context.take(context.prompts), count_failures=False)
        context.note("completions_probed", len(rows))
        found_p = space.zeros()
        if rows.valid_b.any():
            hat = learner.method.compute_advantages(context.batch(subset(rows, rows.valid_b)))
            found_p = curved(learner, space, learner.method.compute_loss_weights(hat), way_p)
        space.write(at_p)
        return found_p

    def words(self) -> str:
        """Return the effect of the part in one sentence."""
        step = "of the rate's length along" if self.normalised else "by the rate times"
        return (
            f"step {step} a momentum to whose old gradients the curvature along the last step is added, measured on "
            f"completions that are sampled between the two last weights; rate and momentum fall with the steps (powers "
            f"{self.decay:g} and {self.power:g})"
        )

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions the curvature takes."""
        count = run.prompts * run.group_size
        return f"{count:,} further completions in every step but the first, between the two last weights"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse several steps per rollout, sampling ahead, and stored completions."""
        several = (
            f"{self.name} takes one step per rollout, and the run takes {run.updates_per_rollout}. Set "
            "batch.minibatches and batch.epochs to 1"
        )
        late = f"{self.name} needs completions of the weights as they are. Set run.async_steps to 0"
        stored = f"{self.name} samples between the two last weights, and the task's completions are stored"
        return [
            *[several] * (run.updates_per_rollout > 1),
            *[late] * (run.async_steps > 0),
            *[stored] * run.stored,
        ]

    def idle(self, run: RunFacts) -> list[str]:
        """Say which of the optimiser's settings have no effect, and when nothing is corrected."""
        found = [
            "optim.betas, weight_decay and grad_clip have no effect: hessian_aided sets its step by optim.lr alone"
        ]
        if self.power == 0:
            found.append("hessian_aided corrects nothing: power is 0, so that each step is along its own gradient")
        return found


def curved(learner: UpdateSteps, space: VectorSpace[V], step: Batch, way_p: V) -> V:
    """Return the product of the Hessian of the expected loss with `way_p`, estimated on a weighted step.

    The step's rows are of the policy as it is; its weights are the same afterwards, and gradients are cleared.
    """
    at_p = space.weights()
    slope_bt = Fisher(learner.policy, space, step, 0.0).slope(way_p)
    moved_b = torch.where(step.mask_bt, slope_bt.to(step.reward_b), 0).sum(1, keepdim=True)
    chance_p = _gradient(learner, space, weighted(step, moved_b))
    reach = space.eps ** (1 / 3) / float(way_p.norm())
    ends = []
    for sign in (1.0, -1.0):
        space.write(at_p + sign * reach * way_p)
        ends.append(_gradient(learner, space, step))
    space.write(at_p)
    return chance_p + (ends[0] - ends[1]) / (2 * reach)


def weighted(step: Batch, by_b: Tensor) -> Batch:
    """Multiply what each row of a weighted step adds to the loss by `by_b` [B,1]."""
    names = ("weight_bt", "share_bt")
    return step.replace(**{name: step.need(name, "hessian_aided") * by_b for name in names})


def _gradient(learner: UpdateSteps, space: VectorSpace[V], step: Batch) -> V:
    space.clear()
    learner.accumulate(step)
    found_p = space.gradient()
    space.clear()
    return found_p
