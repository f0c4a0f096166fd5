"""The parameter of ties, learned beside the policy."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.margin.margin import Margin
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch

LEARNED = "past.tie_margin"
"""Batch field with the parameter of ties at the start of the step, the same for every row."""


@part("margin")
class LearnedTies(Margin):
    """The parameter of ties that `tie_margin` learns: the margin of links with ties."""

    reads = (LEARNED,)
    says = "how likely ties are, as learned so far"
    equation = "m = m_learned"
    plain = "margin_e = past['tie_margin'][index_2e[0]]"

    def __call__(self, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return the parameter for each pair."""
        margin_b: Tensor = batch.need(LEARNED, self.name)
        return margin_b[index_e2[:, 0]]
