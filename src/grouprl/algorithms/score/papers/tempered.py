"""A log-ratio whose policy term has a weight of its own: H-DPO."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.score.score import Score, over_code, over_tokens, without_reference
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive


@part("score")
class TemperedRatio(Score):
    """Σ_t [α·log π(y_t) - log π_ref(y_t)]: a KL whose entropy term weighs α (H-DPO, arXiv:2411.07595).

    Its optimum is proportional to π_ref^(1/α)·e^(r/(αβ)): sharper than DPO's below α = 1, and DPO's own at 1.
    """

    alpha: Positive = 0.9
    says = "how much likelier the completion is than under the reference, the policy's log-prob times {alpha:g}"
    equation = "s(y) = Σ_t [{alpha:g}·log π(y_t) - log π_ref(y_t)]"
    reads = ("ref_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return Σ_t [α·log π(y_t) - log π_ref(y_t)]."""
        return over_tokens(self.alpha * logp_bt - batch.need("ref_bt", self.name), batch, "sum")

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        return without_reference(run, self.name)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return over_code(f"{self.alpha!r} * logp_bt - ref_bt", "sum")
