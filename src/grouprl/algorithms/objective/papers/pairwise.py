"""Pairwise objectives: the completions of one prompt are compared two by two."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import PairLoss, out_of, pairs_of
from grouprl.algorithms.objective.objective import Bound, LowBound, Surrogate, idle_ratio
from grouprl.algorithms.objective.ratio import log_ratio
from grouprl.algorithms.objective.regression import completion_value, counted, same_group
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch


@part("objective")
class PairwiseGradient(Surrogate):
    """P3O: -(A_i - A_j)·w_i·w_j·(log π(y_i) - log π(y_j))/2, mean over the pairs of a group (arXiv:2310.00212).

    w = π/π_old of a whole completion, detached, its logarithm within ±20. A term whose ratio has already moved far
    enough in its direction is dropped: `separate` judges each completion's own ratio against [1-clip_low, 1+clip_high]
    and drops its half of the pair, `joint` judges w_i/w_j against 1+clip_high (`clip_low` plays no part) and drops the
    pair. Only differences of A matter, so rewards need no baseline.
    """

    clip_low: LowBound = 0.2
    clip_high: Bound = 0.2
    clip: Literal["separate", "joint"] = "separate"
    couples: ClassVar[str] = "group"
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> PairLoss:
        """Return -(A_i - A_j)·w_i w_j·(K_ij log π(y_i) - K_ji log π(y_j))/2, K_ij 0 where completion i's half is
        dropped.
        """
        index_2e = pairs_of(batch, self.name).index_e2.T
        log_b = completion_value(log_ratio(logp_bt.detach(), batch, "sequence_sum"), batch.active_bt)
        total_2e = torch.where(batch.active_bt, logp_bt, 0).sum(1)[index_2e]
        log_2e, sign_21 = log_b[index_2e], log_b.new_tensor([[1.0], [-1.0]])
        gap_2e = sign_21 * self._gaps(batch)
        above_2e, below_2e = self._dropped(log_2e, gap_2e)
        loss_2e = -gap_2e * log_2e.sum(0).exp() * ~(above_2e | below_2e) * total_2e
        high_e, low_e = (dropped_2e.to(log_b.dtype).mean(0) for dropped_2e in (above_2e, below_2e))
        metrics = {
            "pair_clip_fraction": high_e + low_e,
            "pair_clip_fraction_high": high_e,
            "pair_clip_fraction_low": low_e,
        }
        return PairLoss(loss_2e.mean(0), metrics)

    @override
    def code(self) -> str:
        low, high = self._band()
        moved = "log_2e - log_2e.flip(0)" if self.clip == "joint" else "log_2e"
        return (
            "known_b = counts_b & active_bt.any(1)\n"
            "index_2e = (same_bb & known_b[:, None] & known_b).triu(1).nonzero().T  # pairs of completions\n"
            "log_2e = held(torch.where(active_bt, logp_bt.detach() - old_bt, 0).sum(1))[index_2e]\n"
            "total_2e = torch.where(active_bt, logp_bt, 0).sum(1)[index_2e]\n"
            "value_b = adv_bt.sum(1) / active_bt.sum(1).clamp(min=1)\n"
            "gap_e = value_b[index_2e[0]] - value_b[index_2e[1]]\n"
            "gap_2e = torch.stack([gap_e, -gap_e])\n"
            f"moved_2e = ({moved}).exp()\n"
            f"out_2e = ((moved_2e > {high!r}) & (gap_2e > 0)) | ((moved_2e < {low!r}) & (gap_2e < 0))\n"
            "loss_e = (-gap_2e * log_2e.sum(0).exp() * ~out_2e * total_2e).mean(0)\n"
            "loss_bt = pairs_to_rows(loss_e, index_2e, group_b, known_b)[:, None] * active_bt"
        )

    def pairs(self, batch: Batch) -> Tensor:
        """Return [E,2] the pairs of all completions of a prompt that count."""
        known_b = counted(batch) > 0
        return (same_group(batch) & known_b[:, None] & known_b[None]).triu(1).nonzero()

    def _gaps(self, batch: Batch) -> Tensor:
        """Return [E] A_i - A_j of each pair."""
        value_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        first_e, second_e = value_b[pairs_of(batch, self.name).index_e2.T]
        return first_e - second_e

    def _dropped(self, log_2e: Tensor, gap_2e: Tensor) -> tuple[Tensor, Tensor]:
        """Return [2,E] bool each: halves of pairs that are dropped for a ratio too large, and too small."""
        moved_2e = log_2e - log_2e.flip(0) if self.clip == "joint" else log_2e
        low, high = self._band()
        return (moved_2e.exp() > high) & (gap_2e > 0), (moved_2e.exp() < low) & (gap_2e < 0)

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows whose advantage equals that of all other completions of their prompt."""
        return out_of(pairs_of(batch, self.name).index_e2[self._gaps(batch) != 0], batch)

    @override
    def words(self) -> str:
        ratio = "its own ratio" if self.clip == "separate" else "the ratio of the two ratios"
        return (
            "push every two completions of one prompt apart by the difference of their rewards, times both "
            f"completions' ratios (not differentiated); a term is dropped when {ratio} has left "
            f"{self._band_words()} in its direction"
        )

    def _band(self) -> tuple[float, float]:
        """Return the bounds of the checked ratio; with `joint` one bound for w_i/w_j and w_j/w_i, both halves being one
        pair.
        """
        return (1 - self.clip_low if self.clip == "separate" else 1 / (1 + self.clip_high)), 1 + self.clip_high

    def _band_words(self) -> str:
        low, high = self._band()
        return f"[{low:.3g}, {high:.3g}]"

    @override
    def formula(self) -> str:
        return f"-log π(y_i)·1/(G-1)·Σ_j sg[w_i w_j]·(A_i - A_j)·[inside {self._band_words()}],  w = π(y)/π_old(y)"

    def idle(self, run: RunFacts) -> list[str]:
        """Say when `clip_low` has no effect, and that nothing is dropped if the ratio is always 1."""
        unread = ["pairwise_gradient.clip_low has no effect with clip joint"] if self._unread_low() else []
        return [*unread, *idle_ratio(run, "old", f"the band {self._band_words()}")]

    def _unread_low(self) -> bool:
        return self.clip == "joint" and self.clip_low != type(self).clip_low

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which have no pairs."""
        if run.group_size == 1:
            return [
                "pairwise_gradient compares completions of one prompt in pairs, but batch.group_size is 1. Use "
                "batch.group_size of 2 or more"
            ]
        return []
