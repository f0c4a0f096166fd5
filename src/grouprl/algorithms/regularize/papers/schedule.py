"""KL terms whose weight or anchor changes with the step of the run."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.regularize.kl import CODE, FORMULA, GRADIENT, ValueEstimator, estimate
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import NonNegative

Curve = Literal["constant", "linear", "cosine", "exponential"]


@part("regularize", name="scheduled_kl")
class ScheduledKL(Regularizer):
    """KL to the reference whose weight grows from `low` to `coef` over the run (GRPO-D, OThink-MR1, arXiv:2503.16081).

    With u = step/(steps - 1): "linear" low + (coef - low)u, "cosine" low + (coef - low)(1 - cos πu)/2, "exponential"
    low·(coef/low)^u, "constant" coef throughout.
    """

    coef: NonNegative = 0.04
    low: NonNegative = 0.001
    curve: Curve = "linear"
    estimator: ValueEstimator = "k3"
    idle_at = ("coef", 0, "the scheduled KL has no effect: its coefficient is 0")

    def __post_init__(self) -> None:
        """Raise InputError if the weight would fall, or grow exponentially from 0."""
        if self.low > self.coef:
            raise InputError(
                f"scheduled_kl: low {self.low:g} > coef {self.coef:g}", "the weight grows from low to coef"
            )
        if self.curve == "exponential" and self.low == 0 and self.coef > 0:
            raise InputError(
                "scheduled_kl has low 0 with the curve exponential", "the curve multiplies low, which must be above 0"
            )

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return β(step)·k(d_t)."""
        log_bt = torch.where(batch.active_bt, logp_bt - batch.need("ref_bt", self.name), 0)
        return TokenLoss(self.weight(batch) * estimate(log_bt, self.estimator), {"kl_ref": log_bt})

    @override
    def code(self) -> str:
        share = "u" if self.curve == "linear" else "(1 - math.cos(math.pi * u)) / 2"
        beta = f"{self.low!r} + {self.coef - self.low!r} * {share}"
        if self.curve == "exponential":
            beta = f"{self.low!r} * {self.coef / self.low!r} ** u" if self.low > 0 else "0.0"
        return (
            f"u = min(step / max(steps - 1, 1), 1.0)\nbeta = {repr(self.coef) if self.curve == 'constant' else beta}\n"
            "d_bt = torch.where(active_bt, logp_bt - ref_bt, 0)\n"
            f"loss = loss + beta * (weight_bt * ({CODE[self.estimator]})).sum()"
        )

    def weight(self, batch: Batch) -> float:
        """Return β at the batch's step."""
        if self.curve == "constant":
            return self.coef
        step, steps = batch.need("step", self.name), batch.need("steps", self.name)
        u = min(step / max(steps - 1, 1), 1.0)
        if self.curve == "exponential":
            return self.low * (self.coef / self.low) ** u if self.low > 0 else 0.0
        return self.low + (self.coef - self.low) * (u if self.curve == "linear" else (1 - math.cos(math.pi * u)) / 2)

    @override
    def needs(self) -> tuple[str, ...]:
        return ("ref_bt",) if self.curve == "constant" else ("ref_bt", "step", "steps")

    @override
    def words(self) -> str:
        grows = (
            f"{self.coef:g}" if self.curve == "constant" else f"{self.low:g} growing to {self.coef:g} ({self.curve})"
        )
        return f"{grows} times KL to the reference model, estimator {self.estimator} ({GRADIENT[self.estimator]})"

    @override
    def formula(self) -> str:
        return f"+ β(step) · [{FORMULA[self.estimator]}],  d = log π(y_t) - log π_ref(y_t)"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        if self.coef > 0 and not run.has_reference:
            return ["the scheduled KL needs a reference model. Set model.reference: initial, or the coefficient to 0"]
        return []


@part("regularize", name="convex_kl")
class ConvexKL(Regularizer):
    """β[λ KL(π || π_ref) + (1-λ) KL(π || π_old)] with λ falling from 1 (ReMix, arXiv:2507.06892).

    λ(t) = max(1 - drop·ceil(max(t - start, 0)/every), floor), t the number of the step from 0.
    """

    coef: NonNegative = 0.001
    start: Annotated[int, Field(ge=0)] = 50
    every: Annotated[int, Field(ge=1)] = 10
    drop: Annotated[float, Field(ge=0, le=1)] = 0.1
    floor: Annotated[float, Field(ge=0, le=1)] = 0.5
    estimator: ValueEstimator = "k3"
    says = (
        "{coef:g} times KL to the reference model, of which from step {start} on a share moves to the policy at "
        "the start of the update, until {floor:g} is left ({estimator})"
    )
    reads = ("ref_bt", "old_bt", "step")
    idle_at = ("coef", 0, "the convex KL has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return β[λ k(d_ref) + (1-λ) k(d_old)]."""
        share = self.share(batch.need("step", self.name))
        value_bt = torch.zeros_like(logp_bt)
        log_ref_bt = self._log(logp_bt, batch, "ref_bt")
        for weight, log_bt in ((share, log_ref_bt), (1 - share, self._log(logp_bt, batch, "old_bt"))):
            value_bt = value_bt + weight * estimate(log_bt, self.estimator)
        return TokenLoss(self.coef * value_bt, {"kl_ref": log_ref_bt})

    @override
    def code(self) -> str:
        return (
            f"share = max(1 - {self.drop!r} * math.ceil(max(step - {self.start}, 0) / {self.every}), {self.floor!r})\n"
            "for share, anchor_bt in ((share, ref_bt), (1 - share, old_bt)):\n"
            "    d_bt = torch.where(active_bt, logp_bt - anchor_bt, 0)\n"
            f"    loss = loss + {self.coef!r} * share * (weight_bt * ({CODE[self.estimator]})).sum()"
        )

    def share(self, step: int) -> float:
        """Return λ at a step."""
        return max(1 - self.drop * math.ceil(max(step - self.start, 0) / self.every), self.floor)

    def _log(self, logp_bt: Tensor, batch: Batch, anchor: str) -> Tensor:
        return torch.where(batch.active_bt, logp_bt - batch.need(anchor, self.name), 0)

    @override
    def formula(self) -> str:
        share = f"λ = max(1 - {self.drop:g}·⌈max(t-{self.start}, 0)/{self.every}⌉, {self.floor:g})"
        return f"+ {self.coef:g} · [λ·k(d_ref) + (1-λ)·k(d_old)],  {share},  k: {FORMULA[self.estimator]}"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        if self.coef > 0 and not run.has_reference:
            return ["the convex KL needs a reference model. Set model.reference: initial, or the coefficient to 0"]
        return []
