"""Training only on the completions with the largest advantages (CPPO)."""

from __future__ import annotations

from typing import Literal

import torch
from typing_extensions import override

from grouprl.algorithms.filter.filter import drop
from grouprl.algorithms.filter.papers.pruned import ORDER, keep_count, ordered, segments
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
    def code(self) -> str:
        value = {"smallest": "size_b", "largest": "-size_b", "any": "torch.zeros_like(size_b)"}[self.which]
        of = "group_b" if self.scope == "group" else "torch.zeros_like(group_b)"
        return (
            "size_b = adv_bt.abs().amax(1)\n"
            f"{ORDER.format(value=value)}\n"
            f"keep_b, id_b = torch.zeros_like(counts_b), {of}\n"
            "for each in id_b.unique():\n"
            "    rows_n = order_b[((id_b == each) & active_bt.any(1))[order_b]]\n"
            f"    keep_b[rows_n[len(rows_n) - keep_count(len(rows_n), {self.rate!r}, 1) :]] = True\n"
            "active_bt = active_bt & keep_b[:, None]"
        )

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
