"""Training only on the completions with the largest advantages (CPPO)."""

from __future__ import annotations

from typing import Literal

import torch
from typing_extensions import override

from grouprl.algorithms.filter.filter import drop
from grouprl.algorithms.filter.papers.pruned import keep_count, ordered, segments
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.prune.prune import Prune
from grouprl.core.batch import Batch
from grouprl.core.numbers import ShareBelowOne


@part("prune", name="by_advantage")
class ByAdvantage(Prune):
    """CPPO: keep the completions with the largest |A| (arXiv:2503.22342); mean and spread are those of all completions.

    `scope`: the share is left out of every prompt (the paper) or of the whole batch (both released codes), where a
    prompt may lose all its completions. `which` sets those left out: the smallest |A| (the method), the largest, or any
    (its ablations).
    """

    rate: ShareBelowOne = 0.5
    scope: Literal["group", "batch"] = "group"
    which: Literal["smallest", "largest", "any"] = "smallest"
    reads = ("old_bt",)

    def __call__(self, batch: Batch) -> Batch:
        """Keep the k = floor(G(1 - rate)) completions of largest |A|, at least one."""
        size_b = batch.need("advantage_bt", self.name).abs().amax(1)
        value_b = {"smallest": size_b, "largest": -size_b, "any": torch.zeros_like(size_b)}[self.which]
        keep_b = torch.zeros_like(batch.stats_b)
        for rows in segments(ordered(value_b, batch), batch.grouping(self.scope), batch.active_bt.any(1)):
            keep_b[rows[len(rows) - keep_count(len(rows), self.rate, 1) :]] = True
        return drop(batch, ~keep_b, from_statistics=False)

    @override
    def words(self) -> str:
        what = {"smallest": "of the smallest |A|", "largest": "of the largest |A|", "any": "at random"}[self.which]
        return f"leave out {self.rate:.4g} of each {self.scope}'s completions, those {what}; the others keep their A"

    @override
    def formula(self) -> str:
        return f"keep the {1 - self.rate:.4g}·G completions of largest |A|" if self.which == "smallest" else ""

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if it keeps all completions."""
        if self.rate == 0:
            return ["by_advantage has no effect: its rate is 0"]
        if self.scope == "group" and keep_count(run.group_size, self.rate, 1) == run.group_size:
            return [f"by_advantage has no effect: it keeps all of {run.group_size} completions"]
        return []
