"""Training only on those completions of each group whose rewards vary most (PODS)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.lines import APART
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import ShareBelowOne

ORDER = (
    "lot_b = (torch.where(mask_bt, old_bt, 0).double() * 1000).round().long().square().sum(1) * 2654435761\n"
    "order_b = ((lot_b + mask_bt.sum(1) * 40503) % 2**32).argsort(stable=True)  # ties: by chance\n"
    "value_b = {value}\n"
    "order_b = order_b[value_b[order_b].argsort(stable=True)]"
)
"""Lines that assign `order_b`, the rows in the order of an expression `value` [B] (see `ordered`)."""


def keep_count(n: int, rate: float, least: int) -> int:
    """Return how many of `n` completions stay when the share `rate` is left out (never more than n)."""
    return min(n, max(math.floor(n * (1 - rate) + 1e-9), least))


def shuffled(batch: Batch) -> Tensor:
    """Return [B] int64 pseudo-random number of each row, made from its log-probs at the start of the update.

    The same completion has the same number wherever it stands in the batch and however it is padded.
    """
    rounded_bt = (torch.where(batch.mask_bt, batch.need("old_bt", "the order of ties"), 0).double() * 1000).round()
    return (rounded_bt.long().square().sum(1) * 2654435761 + batch.length_b * 40503) % 2**32


def ordered(value_b: Tensor, batch: Batch) -> Tensor:
    """Return [B] int64 rows in ascending order of `value_b`; ties in the order of `shuffled`."""
    by_chance_b = torch.argsort(shuffled(batch), stable=True)
    return by_chance_b[torch.argsort(value_b[by_chance_b], stable=True)]


def segments(order_b: Tensor, id_b: Tensor, counted_b: Tensor) -> Iterator[Tensor]:
    """Yield the counted rows of each segment of `id_b`, in the order of `order_b`."""
    id_n, live_n = id_b[order_b], counted_b[order_b]
    for segment in torch.unique(id_b):
        rows = order_b[(id_n == segment) & live_n]
        if len(rows):
            yield rows


@part("filter")
class MaxVariance(Filter):
    """PODS: keep the completions of each prompt whose rewards vary most (arXiv:2504.13818), at least two.

    The best subset of m is some number of the lowest rewards and the rest of the highest. The completions left out do
    not count in the group's statistics either: advantages are those of the kept completions.
    """

    rate: ShareBelowOne = 0.75
    reads = ("old_bt",)

    def __call__(self, batch: Batch) -> Batch:
        """Keep argmax_{|S|=m} Var(R_S) of every group."""
        reward_b = batch.total_reward_b
        keep_b = torch.zeros_like(batch.stats_b)
        for rows in segments(ordered(reward_b, batch), batch.group_b, batch.stats_b & batch.active_bt.any(1)):
            keep_b[widest(rows, reward_b, keep_count(len(rows), self.rate, 2))] = True
        return drop(batch, ~keep_b, from_statistics=True)

    @override
    def code(self) -> str:
        return (
            f"{ORDER.format(value='reward_b')}\n"
            "out_b = torch.ones_like(counts_b)\n"
            "for group in group_b.unique():\n"
            "    rows_n = order_b[((group_b == group) & counts_b & active_bt.any(1))[order_b]]\n"
            "    if len(rows_n):\n"
            f"        out_b[widest(rows_n, reward_b, keep_count(len(rows_n), {self.rate!r}, 2))] = False\n"
            "active_bt = active_bt & ~out_b[:, None]\n"
            f"{APART}"
        )

    @override
    def words(self) -> str:
        return f"keep {1 - self.rate:.4g} of each prompt's completions (at least two): those whose rewards vary most"

    @override
    def formula(self) -> str:
        return f"S = argmax Var(R_S),  |S| = {1 - self.rate:.4g}·G"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if it keeps all completions."""
        if keep_count(run.group_size, self.rate, 2) == run.group_size:
            return [f"max_variance has no effect: it keeps all of {run.group_size} completions"]
        return []


def widest(rows: Tensor, reward_b: Tensor, m: int) -> Tensor:
    """Return the `m` of `rows` (in ascending order of reward) with the largest variance of reward.

    Among equal variances the most even split of low and high rewards.
    """
    n = len(rows)
    low_counts = sorted(range(m + 1), key=lambda low: abs(2 * low - m))
    subsets = [torch.cat([rows[:low], rows[n - (m - low) :]]) for low in low_counts]
    variances = [float(reward_b[subset].double().var(unbiased=False)) for subset in subsets]
    best = max(variances)
    return next(s for s, v in zip(subsets, variances, strict=True) if v >= best - 1e-12 * abs(best))
