"""The score of a pair that a general preference model gives (GPM)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import Score
from grouprl.core.batch import Batch
from grouprl.core.edges import preference_scores
from grouprl.core.numbers import Count
from grouprl.core.outputs import PREFERENCE, numbered


@part("score")
class PreferenceScore(Score):
    """Σ over `blocks` of v₁(w)·v₂(l) - v₂(w)·v₁(l), v the model's vector of a completion (GPM, arXiv:2410.02197).

    It exists for pairs only: each completion of a pair has half of it, the other with the opposite sign.
    """

    blocks: Count = 1
    log_probs: ClassVar[bool] = False
    says = (
        "how the model's vector of one completion stands to that of the other, in {blocks} planes: it may go in circles"
    )
    equation = "Δs = Σ_k v_(2k-1)(w)·v_2k(l) - v_2k(w)·v_(2k-1)(l),  k ≤ {blocks}"

    @override
    def outputs(self) -> tuple[str, ...]:
        return numbered(PREFERENCE, 2 * self.blocks)

    def of_pairs(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return half of the score of the first completion against the second, and minus that, [E,2]."""
        value_bd = torch.stack([batch.need(f"row_outputs.{name}", self.name) for name in self.outputs()], 1)
        half_e = preference_scores(value_bd[index_e2[:, 0]], value_bd[index_e2[:, 1]]) / 2
        return torch.stack([half_e, -half_e], 1)

    @override
    def code(self) -> str:
        """Return the part as lines of plain torch."""
        vectors = f"torch.stack([row_outputs[name] for name in {self.outputs()!r}], 1)"
        return f"""one_ed, other_ed = {vectors}[index_2e]
half_e = (one_ed[:, 0::2] * other_ed[:, 1::2] - one_ed[:, 1::2] * other_ed[:, 0::2]).sum(1) / 2
score_2e = torch.stack([half_e, -half_e])"""
