"""Pairs whose rewards are clearly apart: RS-DPO."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.objective.pair import Pair
from grouprl.algorithms.objective.regression import completion_value
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("objective")
class ClearPair(Pair):
    """A loss of the pairs whose advantages differ by more than `gap` (RS-DPO, arXiv:2402.10038, algorithm 1).

    Otherwise it is `pair`. Every accepted pair of a prompt counts, as many as there are.
    """

    gap: NonNegative = 0.0
    says = (
        "of every two completions of a prompt whose advantages differ by more than {gap:g} let the better score higher"
    )

    def pairs(self, batch: Batch) -> Tensor:
        """Return [E,2] the accepted pairs, the better completion first."""
        index_e2 = super().pairs(batch)
        value_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        return index_e2[value_b[index_e2[:, 0]] - value_b[index_e2[:, 1]] > self.gap]

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return super().code()

    def _pairs_code(self) -> str:
        if not (pairs := super()._pairs_code()):
            return ""
        return f"{pairs}\nindex_2e = index_2e[:, value_b[index_2e[0]] - value_b[index_2e[1]] > {self.gap!r}]"
