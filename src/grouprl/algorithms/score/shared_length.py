"""A log-ratio in which tokens beyond the length of a pair's shorter completion weigh less: LD-DPO."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.score.score import Length, Score, without_reference
from grouprl.core.batch import Batch
from grouprl.core.numbers import Share


@part("score")
class SharedLength(Score):
    """log π/π_ref with the tokens beyond the length of the pair's shorter completion times `alpha` (LD-DPO).

    From arXiv:2409.06411. It exists for pairs only; `alpha` 1 is the plain sum, 0 compares equally many tokens.
    `length` divides by the completion's own number of tokens.
    """

    alpha: Share = 0.5
    length: Length = "sum"
    linear: ClassVar[bool] = True
    reads = ("ref_bt",)

    def of_pairs(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return α·Σ_t d_t + (1-α)·Σ_{t ≤ min(|w|,|l|)} d_t of both completions, [E,2]."""
        active_bt = batch.active_bt
        log_bt = torch.where(active_bt, logp_bt - batch.need("ref_bt", self.name), 0)
        length_e2 = active_bt.sum(1)[index_e2]
        shared_e2t = active_bt.cumsum(1)[index_e2] <= length_e2.amin(1)[:, None, None]
        score_e2 = torch.where(shared_e2t, log_bt[index_e2], self.alpha * log_bt[index_e2]).sum(2)
        return score_e2 if self.length == "sum" else score_e2 / length_e2.clamp(min=1)

    @override
    def implicit(self) -> Score:
        return replace(self, length="sum")

    @override
    def words(self) -> str:
        how = "" if self.length == "sum" else ", divided by its length"
        return (
            f"the log-ratio, with tokens beyond the length of the pair's shorter completion times {self.alpha:g}{how}"
        )

    @override
    def formula(self) -> str:
        over = "" if self.length == "sum" else "1/|y| · "
        return f"s(y) = {over}[Σ_{{t≤m}} d_t + {self.alpha:g}·Σ_{{t>m}} d_t],  m = min(|w|, |l|),  d = log π/π_ref"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        return without_reference(run, self.name)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        mean = "" if self.length == "sum" else " / length_2e.clamp(min=1)"
        return "\n".join(
            [
                "log_bt = torch.where(active_bt, logp_bt - ref_bt, 0)",
                "length_2e = active_bt.sum(1)[index_2e]",
                "shared_2et = active_bt.cumsum(1)[index_2e] <= length_2e.amin(0)[:, None]",
                f"score_2e = torch.where(shared_2et, log_bt[index_2e], {self.alpha!r} * log_bt[index_2e]).sum(2){mean}",
            ]
        )
