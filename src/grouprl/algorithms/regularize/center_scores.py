"""A term that holds scores near zero, which a loss of their differences leaves free."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from grouprl.algorithms.losses import PairLoss, out_of, pairs_of
from grouprl.algorithms.objective.pair import PAIRS
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative
from grouprl.core.outputs import SCORE


@part("regularize")
class CenterScores(Regularizer):
    """`coef` times (r(w) + r(l))² of each pair: scores of a pair are centred (Helping or Herding, arXiv:2312.09244)."""

    coef: NonNegative = 0.01
    log_probs: ClassVar[bool] = False
    couples: ClassVar[str] = "group"
    asks = (SCORE,)
    says = "{coef:g} times the squared sum of the two scores of a pair, so that scores stay centred"
    equation = "{coef:g}·(r(w) + r(l))²"

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> PairLoss:
        """Return coef·(r(w) + r(l))² of each pair."""
        first_e, second_e = batch.need(f"row_outputs.{SCORE}", self.name)[pairs_of(batch, self.name).index_e2].unbind(1)
        return PairLoss(self.coef * (first_e + second_e).square())

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that are in no pair, or all where the weight is 0."""
        out_b = out_of(pairs_of(batch, self.name).index_e2, batch)
        return out_b if self.coef else out_b | True

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return "\n".join(
            [
                PAIRS,
                f"first_e, second_e = row_outputs['{SCORE}'][index_2e]",
                f"centre_e = {self.coef!r} * (first_e + second_e).square()",
                "centre_b = pairs_to_rows(centre_e, index_2e, group_b, known_b)",
                "loss = loss + (weight_bt * centre_b[:, None] * active_bt).sum()",
            ]
        )
