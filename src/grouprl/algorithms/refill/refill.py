"""Refill: choosing the groups that are worth an update, and sampling new prompts in place of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.filter.filter import By, telling_rows
from grouprl.algorithms.part import Part, part
from grouprl.core.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor


class Refill(Part):
    """Base: which groups count towards a full batch; new prompts are sampled until there are enough of them."""

    max_rounds: int

    def wanted(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows of groups that are kept."""
        raise NotImplementedError


@part("refill")
class DynamicSampling(Refill):
    """DAPO's dynamic sampling: sample new prompts until the batch is full of mixed groups (arXiv:2503.14476).

    A batch takes at most `max_rounds` rounds of sampling, and may stay incomplete after them. `by="reward"` wants
    groups whose rewards differ, whether or not one is right.
    """

    max_rounds: Annotated[int, Field(ge=1)] = 10
    by: By = "outcome"
    idle_at = ("max_rounds", 1, "dynamic_sampling has no effect: max_rounds is 1")

    def wanted(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows of groups that hold both right and wrong completions (by="reward":
        different rewards).
        """
        return telling_rows(batch, self.by)

    @override
    def words(self) -> str:
        if self.by == "reward":
            return f"sample new prompts until no group has zero variance, at most {self.max_rounds} rounds"
        return f"sample new prompts until every one has right and wrong completions, at most {self.max_rounds} rounds"
