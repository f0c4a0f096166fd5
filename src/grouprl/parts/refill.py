"""Refill: which groups are worth an update, and how often to sample again for those that are not."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from grouprl.batch import Batch
from grouprl.parts.part import Part, RunFacts, part
from grouprl.parts.selection import mixed_rows


@part("refill")
class DynamicSampling(Part):
    """DAPO's dynamic sampling: sample new questions until the batch is full of mixed groups (arXiv:2503.14476).

    At most `max_rounds` rounds of sampling for one batch; what is missing then is missing.
    """

    max_rounds: Annotated[int, Field(ge=1)] = 10

    def wanted(self, batch: Batch) -> Tensor:
        """[B] bool: rows of groups that hold both right and wrong answers."""
        return mixed_rows(batch)

    def words(self) -> str:
        """Describe."""
        return f"sample new questions until every one has right and wrong answers, at most {self.max_rounds} rounds"

    def idle(self, run: RunFacts) -> list[str]:
        """One round is no refill."""
        return ["dynamic_sampling has no effect: max_rounds is 1"] if self.max_rounds == 1 else []
