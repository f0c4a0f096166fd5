"""Training only on the completions whose advantages vary most (D3S)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.part import part
from grouprl.algorithms.token_weight.token_weight import TokenWeight
from grouprl.core.batch import Batch
from grouprl.core.numbers import PositiveShare


@part("token_weight")
class VarianceSubset(TokenWeight):
    """Keep the share of completions whose advantages vary most, across prompts; multiply the others by zero (D3S).

    The subset of N with the largest variance is some of the smallest advantages and the rest of the largest.
    Completions of equal advantage are told apart by their mean entropy.
    """

    fraction: PositiveShare = 0.5
    says = "train only on the {fraction:.0%} of completions whose advantages have the largest variance"
    equation = "× [i ∈ argmax_{{|S|=N}} Var(A_S)]"
    reads = ("entropy_bt",)
    plain = (
        "size_b = active_bt.sum(1).clamp(min=1)\n"
        "adv_b, h_b = adv_bt.sum(1) / size_b, torch.where(active_bt, old_entropy_bt, 0).sum(1) / size_b\n"
        "row_n, keep_b = active_bt.any(1).nonzero()[:, 0], torch.zeros_like(adv_b)\n"
        "if len(row_n):\n"
        "    keep_b[row_n[largest_spread(adv_b[row_n], max(1, round({fraction!r} * len(row_n))), h_b[row_n])]] = 1\n"
        "factor_bt = factor_bt * keep_b[:, None]"
    )
    idle_at = ("fraction", 1, "variance_subset has no effect: its fraction is 1")

    def __call__(self, batch: Batch) -> Tensor:
        """Return [row among the N = max(1, round(fraction·B)) of the largest Var(A)]."""
        active_bt = batch.active_bt
        size_b = active_bt.sum(1)
        adv_b, entropy_b = (
            torch.where(active_bt, batch.need(name, self.name), 0).sum(1) / size_b.clamp(min=1)
            for name in ("advantage_bt", "entropy_bt")
        )
        row_n = (size_b > 0).nonzero()[:, 0]
        keep_b = torch.zeros_like(adv_b)
        if len(row_n):
            chosen = largest_spread(adv_b[row_n], max(1, round(self.fraction * len(row_n))), entropy_b[row_n])
            keep_b[row_n[chosen]] = 1
        return batch.broadcast(keep_b)


def largest_spread(value_n: Tensor, size: int, tie_n: Tensor) -> Tensor:
    """Return [size] indices of the subset of `value_n` with the largest variance; equal values stand in order of
    `tie_n`.

    Values closer than a millionth of the largest are equal, so rounding decides nothing.
    """
    centered_n = value_n - value_n.mean()
    level_n = (centered_n / centered_n.abs().amax().clamp(min=1e-30) * 2**20).round()
    by_tie_n = tie_n.argsort()
    order_n = by_tie_n[level_n[by_tie_n].argsort(stable=True)]
    sorted_n = centered_n[order_n]
    low_k, low2_k = (torch.cat([x.new_zeros(1), x[:size].cumsum(0)]) for x in (sorted_n, sorted_n.square()))
    high_k, high2_k = (
        torch.cat([x.new_zeros(1), x.flip(0)[:size].cumsum(0)]).flip(0) for x in (sorted_n, sorted_n.square())
    )
    spread_k = (low2_k + high2_k) / size - ((low_k + high_k) / size).square()
    best = int((spread_k >= spread_k.amax() * (1 - 1e-6)).nonzero()[0, 0])
    return torch.cat([order_n[:best], order_n[len(order_n) - (size - best) :]])
