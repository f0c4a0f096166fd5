"""The natural gradient within a KL ball, by conjugate gradients and a line search (TRPO)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.objective.importance import Fisher, clear, flat, gradient, write
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.algorithms.vectors import vectors_here
from grouprl.core.batch import Batch
from grouprl.core.errors import RunError
from grouprl.protocols import Policy, PolicyInputs

HEAD = "value_head."
"""Prefix of the names of a critic's own parameters."""


Product = Callable[[Tensor], Tensor]


@part("update")
class TrustRegion(Update):
    """TRPO's step (arXiv:1502.05477, appendix C): x = F⁻¹g, scaled to a mean KL of δ, halved until the KL is small
    enough.

    F is the Fisher matrix of the sampled tokens, 1/N Σ_t ∇log π_t ∇log π_tᵀ, plus `damping`: its products with a vector
    need no second derivatives, and every `thin`-th completion gives those of the conjugate gradients. The length of the
    step comes from the curvature along it over all completions: a few completions say nothing about the directions of
    the others, and the step would be many times too long. A step is taken when KL(old || new), by k3 on the sampled
    tokens, is at most `accept`·δ and the loss has fallen; after `backtracks` failed trials the policy stays as it is. A
    critic's own parameters are fitted by the optimiser, `critic_steps` steps per rollout; the trunk it shares moves by
    the natural step alone.
    """

    one_policy: ClassVar[bool] = True

    delta: Annotated[float, Field(gt=0)] = 0.01
    damping: Annotated[float, Field(ge=0)] = 0.1
    iterations: Annotated[int, Field(ge=1)] = 10
    thin: Annotated[int, Field(ge=1)] = 1
    backtracks: Annotated[int, Field(ge=1)] = 10
    accept: Annotated[float, Field(gt=0)] = 1.0
    critic_steps: Annotated[int, Field(ge=1)] = 5
    equation = "θ + ½^j·√(2·{delta:g}/xᵀFx)·x,  x = F⁻¹g,  F = 1/N Σ_t ∇log π_t ∇log π_tᵀ + {damping:g}"

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the natural step of each optimiser step, then fit the critic."""
        for step in learner.steps(prepared):
            if not bool(step.active_bt.any()):
                continue
            metrics = self.climb(learner.without_critic(), step)
            if learner.method.critic is not None:
                metrics |= self.fit(learner, step)
            yield metrics

    def climb(self, learner: UpdateSteps, step: Batch) -> dict[str, float]:
        """Move the policy's own parameters and return metrics."""
        own = own_parameters(learner.policy)
        clear(learner.policy)
        metrics = learner.accumulate(step)
        uphill_p = -gradient(own)
        norm = float(uphill_p.norm())
        if not math.isfinite(norm):
            raise RunError(f"the gradient is not finite (norm {norm}); no step was taken. Look at the last rewards")
        space = vectors_here(own, learner.optimizer, {})
        fisher = Fisher(learner.policy, space, thinned(step, self.thin), self.damping)
        whole = Fisher(learner.policy, space, step, self.damping) if self.thin > 1 else None
        step_p = natural_step(uphill_p, fisher, self.delta, self.iterations, whole) if norm > 0 else None
        clear(learner.policy)
        found = (0.0, 0.0) if step_p is None else self.search(learner, step, own, step_p)
        return {**metrics, "grad_norm": norm, "step_fraction": found[0], "step_kl": found[1]}

    def search(self, learner: UpdateSteps, step: Batch, own: Sequence[Tensor], step_p: Tensor) -> tuple[float, float]:
        """Halve the step until it is acceptable; return its fraction and the measured KL, zeros if no step is."""
        start_p = flat(own)
        before, old_bt = learner.evaluate(step)
        for fraction in (0.5**j for j in range(self.backtracks)):
            write(own, start_p + fraction * step_p)
            loss, new_bt = learner.evaluate(step)
            kl = mean_kl(old_bt, new_bt, step.active_bt)
            if kl <= self.accept * self.delta and loss < before:
                return fraction, kl
        write(own, start_p)
        return 0.0, 0.0

    def fit(self, learner: UpdateSteps, step: Batch) -> dict[str, float]:
        """Fit the critic's own parameters and return the metrics of its first step."""
        records = []
        for _ in range(self.critic_steps):
            clear(learner.policy)
            records.append(learner.accumulate_values(step))
            for parameter in own_parameters(learner.policy):
                parameter.grad = None
            learner.apply()
        return records[0]

    @override
    def words(self) -> str:
        completions = "all completions" if self.thin == 1 else f"every {self.thin}th completion"
        return (
            f"one natural gradient step of mean KL {self.delta:g} ({self.iterations} conjugate gradients on the "
            f"Fisher matrix of the tokens of {completions}, damping {self.damping:g}), halved until the KL is at most "
            f"{self.accept * self.delta:g} and the loss has fallen; a critic's head takes {self.critic_steps} steps "
            "of the optimiser"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the optimiser's settings have no effect on the policy."""
        return [
            "optim.lr, betas, weight_decay and grad_clip have no effect on the policy: trust_region sets its step by "
            "delta (they act on a critic's head)"
        ]

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse half precision, which is too coarse for differences of log-probs."""
        said = (
            "trust_region takes differences of log-probs, which half precision cannot represent. Set model.dtype and "
            "model.precision to float32"
        )
        return [said] * run.rounded


def natural_step(
    uphill_p: Tensor, product: Product, delta: float, iterations: int, whole: Product | None = None
) -> Tensor | None:
    """Return √(2δ/xᵀFx)·x with F x = g by conjugate gradients; None where F has no positive curvature along x.

    `uphill_p` is g, [P]; `product` returns F v, and `whole` the product with a better F, which sets the length. Source:
    arXiv:1502.05477, appendix C.
    """
    x_p, product_p = conjugate_gradients(product, uphill_p, iterations)
    curvature = float(x_p @ (product_p if whole is None or not bool(x_p.any()) else whole(x_p)))
    return math.sqrt(2 * delta / curvature) * x_p if curvature > 0 else None


def conjugate_gradients(product: Product, b_p: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Return x with F x ≈ b after at most `iterations` products, and F x, both [P] (Hestenes and Stiefel 1952)."""
    x_p, rest_p, way_p = torch.zeros_like(b_p), b_p.clone(), b_p.clone()
    before = float(rest_p @ rest_p)
    enough = before * torch.finfo(b_p.dtype).eps
    for _ in range(iterations):
        product_p = product(way_p)
        curvature = float(way_p @ product_p)
        if curvature <= 0:
            break
        x_p = x_p + before / curvature * way_p
        rest_p = rest_p - before / curvature * product_p
        after = float(rest_p @ rest_p)
        if after <= enough:
            break
        way_p, before = rest_p + after / before * way_p, after
    return x_p, b_p - rest_p


def thinned(step: Batch, every: int) -> Batch:
    """Return one row in `every`, cut to the columns that these rows use."""
    rows = step.rows(torch.arange(0, step.size[0], every))
    return rows.trim(cast(PolicyInputs, rows.inputs).width)


def mean_kl(old_bt: Tensor, new_bt: Tensor, active_bt: Tensor) -> float:
    """Return KL(old || new) per token in nats, by k3 on tokens sampled from the old policy."""
    log = (new_bt - old_bt)[active_bt].double()
    return float((torch.expm1(log) - log).mean())


def own_parameters(policy: Policy) -> list[Tensor]:
    """Return the trainable parameters that log-probs depend on: all but a critic's own."""
    return [parameter for name, parameter in policy.named_parameters() if not name.startswith(HEAD)]
