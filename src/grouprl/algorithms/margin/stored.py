"""Margins that the data state pair by pair."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.margin.margin import Margin
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive


@part("margin")
class StoredMargin(Margin):
    """`scale` times the margin that is stored with the better completion, as in the reward models of Llama 2
    (arXiv:2307.09288, section 3.2.2).
    """

    scale: Positive = 1.0
    reads = ("rewards.margin",)
    says = "{scale:g} times the margin stored with the pair"
    equation = "m = {scale:g}·m(x)"
    plain = "margin_e = {scale!r} * rewards['margin'][index_2e[0]]"

    def __call__(self, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return scale·m of the better row of each pair."""
        margin_b: Tensor = batch.need("rewards.margin", self.name)
        return self.scale * margin_b[index_e2[:, 0]]
