"""A constraint on the KL of a whole optimiser step (DisCO)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.regression import log_distance
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.regularize.kl import estimate
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("regularize")
class KLConstraint(Regularizer):
    """(c/2)·max(0, K - limit)² with K = KL(π_old || π) over the whole step: no force inside the limit (DisCO).

    K is the step's average of log π_old - log π (k1) or of ρ - 1 - log ρ (k3), weighted as the policy loss. The value
    reported is max(0, K - limit)·K·c, whose gradient with a detached first factor is that of the squared hinge.
    """

    coef: NonNegative = 1000.0
    limit: Annotated[float, Field(ge=0)] = 1e-4
    estimator: Literal["k1", "k3"] = "k1"
    couples: ClassVar[str] = "batch"
    says = "hold the KL from the old policy below {limit:g} by a squared hinge of weight {coef:g}"
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return sg[c·max(0, K - limit)]·k_t."""
        log_bt = log_distance(logp_bt, batch, "old")
        kl_bt = estimate(-log_bt, self.estimator)
        weight_bt = batch.need("weight_bt", self.name)
        mean = (weight_bt * kl_bt).detach().sum() / weight_bt.sum().clamp(min=1e-30)
        return TokenLoss(self.coef * (mean - self.limit).clamp(min=0) * kl_bt, {})

    @override
    def code(self) -> str:
        value = "-d_bt" if self.estimator == "k1" else "torch.expm1(held(d_bt)) - d_bt"
        return (
            "d_bt = torch.where(active_bt, logp_bt - old_bt, 0)\n"
            f"kl_bt = {value}\n"
            "kl = (weight_bt * kl_bt).detach().sum() / weight_bt.sum().clamp(min=1e-30)\n"
            f"loss = loss + {self.coef!r} * (kl - {self.limit!r}).clamp(min=0) * (weight_bt * kl_bt).sum()"
        )

    @override
    def formula(self) -> str:
        k = "log π_old - log π" if self.estimator == "k1" else "ρ - 1 - log ρ"
        return f"+ {self.coef:g}/2 · max(0, K - {self.limit:g})²,  K = mean({k})"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the constraint has no effect if its coefficient is 0 or the policies are the same."""
        if self.coef == 0:
            return ["the KL constraint has no effect: its coefficient is 0"]
        if run.updates_per_rollout == 1:
            return ["the KL constraint has no effect: with one update per rollout the policies are the same"]
        return []
