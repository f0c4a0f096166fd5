"""A loss on only the first tokens of a completion and some later ones (S-GRPO)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.filter.filter import Filter
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.token_weight.token_selection import hashed
from grouprl.core.batch import Batch


@part("filter")
class TokenSubset(Filter):
    """Keep the first `head` tokens of each completion, later ones with probability `keep`, at most `limit` (S-GRPO).

    The others leave the loss and its denominators (arXiv:2504.20834). Chance is a hash of the old log-probs.
    """

    head: Annotated[int, Field(ge=0)] = 50
    keep: Annotated[float, Field(ge=0, le=1)] = 0.5
    limit: Annotated[int, Field(ge=1)] | None = 100
    equation = "t ≤ {head} or u_t < {keep:g}"
    reads = ("old_bt",)

    def __call__(self, batch: Batch) -> Batch:
        """Drop tokens after the head at random, and everything after `limit` kept tokens."""
        active_bt = batch.active_bt
        chance_bt = hashed(batch.need("old_bt", self.name), active_bt)
        keep_bt = active_bt & ((active_bt.cumsum(1) <= self.head) | (chance_bt < self.keep))
        if self.limit is not None:
            keep_bt &= keep_bt.cumsum(1) <= self.limit
        return batch.replace(loss_mask_bt=keep_bt)

    @override
    def code(self) -> str:
        limit = f"\nactive_bt = active_bt & (active_bt.cumsum(1) <= {self.limit})" if self.limit is not None else ""
        return (
            "chance_bt = hashed(old_bt, active_bt)  # uniform numbers that follow from the row itself\n"
            f"active_bt = active_bt & ((active_bt.cumsum(1) <= {self.head}) | (chance_bt < {self.keep!r})){limit}"
        )

    @override
    def words(self) -> str:
        limit = "" if self.limit is None else f", at most {self.limit} in all"
        return (
            f"train on the first {self.head} tokens of each completion and on {self.keep:.0%} of the later ones{limit}"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if no completion is longer than the head."""
        short = run.max_length and run.max_length <= min(self.head, self.limit or self.head)
        if short or (self.keep == 1 and self.limit is None):
            return [f"token_subset has no effect: completions of at most {run.max_length} tokens are kept whole"]
        return []
