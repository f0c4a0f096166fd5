"""A log-ratio to a reference that follows the policy."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import part
from grouprl.algorithms.references import Iterates, ReferenceRule
from grouprl.algorithms.score.score import Length, Score, over_code, over_tokens
from grouprl.core.batch import Batch
from grouprl.core.numbers import Count, PositiveShare


@part("score")
class FollowingRatio(Score):
    """log π/π_t of the completion, π_t a copy of the policy that follows it (TR-DPO, arXiv:2404.09656).

    Every `every` steps the copy's weights move by `share` towards the policy's: 1 replaces it (the hard update).
    """

    every: Count = 512
    share: PositiveShare = 0.6
    length: Length = "sum"
    reads = ("refs.iterates",)

    def references(self) -> Mapping[str, ReferenceRule]:
        """Return the rule of the reference that follows."""
        return {"iterates": Iterates(self.every, self.share)}

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return Σ_t log π(y_t)/π_t(y_t)."""
        return over_tokens(logp_bt - batch.need("refs.iterates", self.name), batch, self.length)

    @override
    def words(self) -> str:
        way = "becomes the policy" if self.share == 1 else f"moves by {self.share:g} of the way to the policy"
        return f"how much likelier the completion is than under a reference that {way} every {self.every} steps"

    @override
    def formula(self) -> str:
        return f"s(y) = {'Σ_t' if self.length == 'sum' else '1/|y| Σ_t'} log π(y_t)/π_iterates(y_t)"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return over_code("logp_bt - refs['iterates']", self.length)
