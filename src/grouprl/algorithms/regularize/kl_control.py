"""A weight of the KL to the reference that adapts to the KL (Ziegler et al. 2019, arXiv:1909.08593, section 2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.data_part import DataPart, RunContext
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.regularize.kl import FORMULA, GRADIENT, ValueEstimator, estimate
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch

if TYPE_CHECKING:
    from grouprl.records.samples import ScoredSamples

MOST = 0.2
"""Largest relative distance from the target that still changes the speed of the weight."""


def moved(coef: float, kl: float, *, target: float, rows: int, horizon: int) -> float:
    """Return the next weight: coef·(1 + clip(kl/target - 1, ±0.2)·rows/horizon).

    Args:
        coef: β of the step that ends.
        kl: KL to the reference that the step measured, in nats per token.
        target: the KL that is aimed at.
        rows: completions of the step.
        horizon: completions over which the weight moves by its own size at a relative distance of 1.
    """
    return coef * (1 + min(max(kl / target - 1, -MOST), MOST) * rows / horizon)


def mean_kl(batch: Batch, estimator: ValueEstimator, value_limit: float | None = None) -> float:
    """Return the mean over rows of their mean estimate of KL(π_old || π_ref) per token; rows without tokens count 0.

    `value_limit` clamps each estimate, as in the term whose weight the mean moves.
    """
    log_bt = batch.need("old_bt", "adaptive KL") - batch.need("ref_bt", "adaptive KL")
    value_bt = torch.where(batch.mask_bt, estimate(log_bt, estimator, value_limit), 0)
    return float((value_bt.sum(1) / batch.mask_bt.sum(1).clamp(min=1)).mean())


class Controlled(DataPart):
    """Base of KL terms whose weight is kept in the run's store: `coef` in the first step, then moved after every step.

    The weight of a step is the batch field `past.kl_coef`, the same for all rows.
    """

    coef: float
    estimator: ValueEstimator
    target: float
    horizon: int
    value_limit: float | None

    async_safe = True
    fills = ("past.kl_coef",)

    def current(self, context: RunContext) -> float:
        """Return the weight of the current step."""
        return float(context.state_of(self).get("coef", self.coef))

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `past.kl_coef`, [B]."""
        coef = self.current(context)
        context.note("kl_coef", coef, "mean")
        return batch.replace(past={**batch.past, "kl_coef": torch.full_like(batch.reward_b, coef)})

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Move the weight by the KL of the rows trained on."""
        if prepared is None:
            return
        kl, rows = mean_kl(prepared, self.estimator, self.value_limit), prepared.size[0]
        context.note("kl_controlled", kl, "mean")
        now = self.current(context)
        context.state_of(self)["coef"] = moved(now, kl, target=self.target, rows=rows, horizon=self.horizon)

    def rule(self) -> str:
        """Say how the weight moves."""
        return (
            f"β starts at {self.coef:g} and moves towards a KL of {self.target:g} nats per token, by at most "
            f"{MOST:.0%} in {self.horizon:,} completions"
        )

    def law(self) -> str:
        """Return the rule in symbols."""
        return f"β ← β·(1 + clip(KL/{self.target:g} - 1, ±{MOST:g})·B/{self.horizon})"

    def no_weight(self) -> list[str]:
        """Say that the part has no effect with a coefficient of 0, which is only ever multiplied."""
        return [f"{self.name} has no effect: its coefficient is 0, and stays 0"] if self.coef == 0 else []


@part("regularize", name="adaptive_kl")
class AdaptiveKL(Regularizer, Controlled):
    """KL to the reference as a loss term with a weight that keeps the KL near `target`.

    The rule of Ziegler et al. 2019 for a term of the loss (they have it in the reward): the KL that moves the weight
    is that of the rows as they were sampled, KL(π_old || π_ref).
    """

    coef: Annotated[float, Field(ge=0)] = 0.001
    estimator: ValueEstimator = "k3"
    target: Annotated[float, Field(gt=0)] = 0.1
    horizon: Annotated[int, Field(ge=1)] = 10_000
    value_limit: Annotated[float, Field(gt=0)] | None = None

    reads = ("ref_bt", "old_bt", "past.kl_coef")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return β(run)·k(d_t)."""
        log_bt = torch.where(batch.active_bt, logp_bt - batch.need("ref_bt", self.name), 0)
        coef_b1 = batch.need("past.kl_coef", self.name)[:, None]
        return TokenLoss(coef_b1 * estimate(log_bt, self.estimator, self.value_limit), {"kl_ref": log_bt})

    def words(self) -> str:
        """Return a sentence on what the part does."""
        return (
            f"β times KL to the reference model, estimator {self.estimator} ({GRADIENT[self.estimator]}); {self.rule()}"
        )

    def formula(self) -> str:
        """Return the formula, with the settings filled in."""
        return f"+ β·[{FORMULA[self.estimator]}],  d = log π(y_t) - log π_ref(y_t),  {self.law()}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if its coefficient is 0."""
        return self.no_weight()

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        if self.coef > 0 and not run.has_reference:
            return ["adaptive_kl needs a reference model. Set model.reference: initial, or the coefficient to 0"]
        return []
