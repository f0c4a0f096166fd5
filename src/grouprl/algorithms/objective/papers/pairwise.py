"""Pairwise objectives: the completions of one prompt are compared two by two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.objective.objective import OLD_BOUNDS, Bound, LowBound, Objective, idle_ratio
from grouprl.algorithms.objective.ratio import log_ratio
from grouprl.algorithms.objective.regression import completion_value, counted
from grouprl.algorithms.part import RunFacts, TokenLoss, part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("objective")
class PairwiseGradient(Objective):
    """P3O: -(A_i - A_j)·w_i·w_j·(log π(y_i) - log π(y_j))/2, mean over the pairs of a group (arXiv:2310.00212).

    w = π/π_old of a whole completion, detached, its logarithm within ±20. A term that has already moved far enough in
    its own direction is dropped: `separate` judges each completion's own ratio against [1-clip_low, 1+clip_high]
    and drops its half of the pair, `joint` judges w_i/w_j against 1+clip_high (`clip_low` plays no part) and drops the
    pair. Only differences of A matter, so rewards need no baseline.
    """

    clip_low: LowBound = 0.2
    clip_high: Bound = 0.2
    clip: Literal["separate", "joint"] = "separate"
    renamed: ClassVar[Mapping[str, str]] = OLD_BOUNDS
    couples: ClassVar[str] = "group"
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """-log π(y_i)·1/(G-1)·Σ_j (A_i - A_j) w_i w_j K_ij on each token of completion i."""
        active_bt, weight_b = batch.active_bt, counted(batch)
        log_b = completion_value(log_ratio(logp_bt.detach(), batch, "sequence_sum"), active_bt)
        gap_bb = self._gaps(batch)
        above_bb, below_bb = self._dropped(log_b, gap_bb)
        both_bb = (log_b[:, None] + log_b[None]).exp()
        others_b = (levels.count(batch.group_b, weight_b, batch.dtype) - 1).clamp(min=1)
        push_b = (gap_bb * both_bb * ~(above_bb | below_bb)).sum(1) / others_b
        total_b = torch.where(active_bt, logp_bt, 0).sum(1)
        pairs_b = (gap_bb != 0).sum(1).clamp(min=1)
        shares = [(x.sum(1) / pairs_b)[:, None].to(log_b.dtype).expand_as(logp_bt) for x in (above_bb, below_bb)]
        metrics = {
            "clip_fraction": shares[0] + shares[1],
            "clip_fraction_high": shares[0],
            "clip_fraction_low": shares[1],
        }
        return TokenLoss(-(push_b * total_b)[:, None] * active_bt, metrics)

    def _gaps(self, batch: Batch) -> Tensor:
        """[B,B] A_i - A_j of completions of the same prompt that count, 0 elsewhere."""
        value_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        weight_b, id_b = counted(batch) > 0, batch.group_b
        pair_bb = (id_b[:, None] == id_b[None]) & weight_b[:, None] & weight_b[None]
        return torch.where(pair_bb, value_b[:, None] - value_b[None], 0)

    def _dropped(self, log_b: Tensor, gap_bb: Tensor) -> tuple[Tensor, Tensor]:
        """[B,B] bool each: terms of completion i that are dropped for a ratio too large, and too small."""
        moved_bb = log_b[:, None] - log_b[None] if self.clip == "joint" else log_b[:, None].expand_as(gap_bb)
        low, high = self._band()
        return (moved_bb.exp() > high) & (gap_bb > 0), (moved_bb.exp() < low) & (gap_bb < 0)

    def zero_rows(self, batch: Batch) -> Tensor:
        """[B] bool: rows whose advantage equals that of all other completions of their prompt."""
        return ~(self._gaps(batch) != 0).any(1)

    @override
    def words(self) -> str:
        ratio = "its own ratio" if self.clip == "separate" else "the ratio of the two ratios"
        return (
            "push every two completions of one prompt apart by the difference of their rewards, times both "
            f"completions' ratios (not differentiated); a term is dropped when {ratio} has left "
            f"{self._band_words()} in its direction"
        )

    def _band(self) -> tuple[float, float]:
        """Bounds of the checked ratio; jointly, one bound for w_i/w_j and w_j/w_i, as both halves are one pair."""
        return (1 - self.clip_low if self.clip == "separate" else 1 / (1 + self.clip_high)), 1 + self.clip_high

    def _band_words(self) -> str:
        low, high = self._band()
        return f"[{low:.3g}, {high:.3g}]"

    @override
    def formula(self) -> str:
        return f"-log π(y_i)·1/(G-1)·Σ_j sg[w_i w_j]·(A_i - A_j)·[inside {self._band_words()}],  w = π(y)/π_old(y)"

    def idle(self, run: RunFacts) -> list[str]:
        """A ratio that is always 1 is never dropped."""
        unread = ["pairwise_gradient.clip_low has no effect with clip joint"] if self._unread_low() else []
        return [*unread, *idle_ratio(run, "old", f"the band {self._band_words()}")]

    def _unread_low(self) -> bool:
        return self.clip == "joint" and self.clip_low != type(self).clip_low

    def refuse(self, run: RunFacts) -> list[str]:
        """A pair needs two."""
        if run.group_size == 1:
            return ["pairwise_gradient compares completions of one prompt in pairs. Use batch.group_size of 2 or more"]
        return []
