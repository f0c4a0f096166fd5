"""Refill: which groups are worth an update, and how often to sample again for those that are not."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.filter.filter import By, telling_rows
from grouprl.algorithms.part import Part, RunFacts, part
from grouprl.core.batch import Batch


class Refill(Part):
    """Base: which groups count towards a full batch; new prompts are sampled until there are enough of them."""

    max_rounds: int

    def wanted(self, batch: Batch) -> Tensor:
        """[B] bool: rows of groups that are kept."""
        raise NotImplementedError


@part("refill")
class DynamicSampling(Refill):
    """DAPO's dynamic sampling: sample new prompts until the batch is full of mixed groups (arXiv:2503.14476).

    At most `max_rounds` rounds of sampling for one batch; what is missing then is missing. `by="reward"` wants groups
    whose rewards differ, whether or not one is right.
    """

    max_rounds: Annotated[int, Field(ge=1)] = 10
    by: By = "outcome"

    def wanted(self, batch: Batch) -> Tensor:
        """[B] bool: rows of groups that hold both right and wrong completions (by="reward": different rewards)."""
        return telling_rows(batch, self.by)

    @override
    def words(self) -> str:
        if self.by == "reward":
            return f"sample new prompts until no group has zero variance, at most {self.max_rounds} rounds"
        return f"sample new prompts until every one has right and wrong completions, at most {self.max_rounds} rounds"

    def idle(self, run: RunFacts) -> list[str]:
        """One round is no refill."""
        return ["dynamic_sampling has no effect: max_rounds is 1"] if self.max_rounds == 1 else []
