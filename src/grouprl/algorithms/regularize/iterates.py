"""A KL term whose reference follows the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.references import FROZEN, Iterates, Mixture, ReferenceRule
from grouprl.algorithms.regularize.kl import CODE, FORMULA, GRADIENT, ValueEstimator, estimate
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.metric import Metric
from grouprl.core.numbers import NonNegative


@part("regularize", name="kl_iterates")
class KLIterates(Regularizer):
    """β times an estimate of KL(π || a reference that follows the policy) (TR-DPO's updates, arXiv:2404.09656).

    Every `every` steps, before the update, the reference's weights move by `share` towards the policy's: 1 makes it an
    earlier iterate, a smaller share an average of iterates. With `initial` it is mixed with the initial policy, which
    has that share of the probability.
    """

    coef: NonNegative = 0.04
    every: Annotated[int, Field(ge=1)] = 1
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    initial: Annotated[float, Field(ge=0, lt=1)] = 0.0
    estimator: ValueEstimator = "k3"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "kl_iterates": Metric(
            unit="nats per token",
            words="log π less the log-prob under the reference that follows the policy, over the tokens in the loss",
            good="small: how far the policy has moved from its earlier iterates",
        )
    }
    idle_at = ("coef", 0, "kl_iterates has no effect: its coefficient is 0")

    def references(self) -> Mapping[str, ReferenceRule]:
        """Return the iterates, and their mixture with the initial policy if one is asked for."""
        found: dict[str, ReferenceRule] = {"iterates": Iterates(self.every, self.share)}
        if self.initial > 0:
            found["mixed"] = Mixture({"iterates": 1 - self.initial, FROZEN: self.initial})
        return found

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return β·k(d_t) with d_t = log π(y_t) - log π_iterates(y_t)."""
        (read,) = self.needs()
        log_bt = torch.where(batch.active_bt, logp_bt - batch.need(read, self.name), 0)
        return TokenLoss(self.coef * estimate(log_bt, self.estimator), {"kl_iterates": log_bt})

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        (read,) = self.needs()
        return f"""d_bt = torch.where(active_bt, logp_bt - refs['{read.removeprefix("refs.")}'], 0)
kl_bt = {CODE[self.estimator]}
{self.added("kl_bt")}"""

    @override
    def needs(self) -> tuple[str, ...]:
        return ("refs.mixed",) if self.initial > 0 else ("refs.iterates",)

    @override
    def words(self) -> str:
        when = "step" if self.every == 1 else f"{self.every} steps"
        way = "becomes the policy" if self.share == 1 else f"moves by {self.share:g} of the way to the policy"
        mixed = f", mixed with {self.initial:.0%} of the initial policy" if self.initial > 0 else ""
        how = f"estimator {self.estimator} ({GRADIENT[self.estimator]})"
        return f"{self.coef:g} times KL to a reference that {way} every {when}{mixed}, {how}"

    @override
    def formula(self) -> str:
        return f"+ {self.coef:g} · [{FORMULA[self.estimator]}],  d = log π(y_t) - log π_iterates(y_t)"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a mixture with the initial policy without a reference model."""
        if self.initial > 0 and self.coef > 0 and not run.has_reference:
            return ["kl_iterates mixes in the initial policy. Set model.reference: initial, or initial to 0"]
        return []
