"""Advantages of turns changed by how certain the policy was in them."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import part
from grouprl.algorithms.turn_returns import next_turn, on_tokens, turn_means, turns_of
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("advantage_transform")
class EntropyModulated(AdvantageTransform):
    """EMPG: confident turns count more, uncertain ones less, and a turn that leads to a confident one earns a bonus
    (arXiv:2509.09265).

    H is a turn's mean token entropy, scaled to [0, 1] over the turns of the batch. A_k·g_k + ζ·f_{k+1} with g =
    exp(-k1·H)/mean exp(-k1·H) and f = exp(-k2·H); no bonus in the last turn. Then, with `center`, the mean over the
    turns of the batch is subtracted.
    """

    k1: NonNegative = 1.0
    k2: NonNegative = 1.0
    zeta: NonNegative = 0.05
    center: bool = True
    reads = ("turn_bt", "entropy_bt")

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A·g + ζ·f_next - mean."""
        there_bs = turns_of(batch, self.name)
        counted_bs = there_bs & batch.stats_b[:, None]
        entropy_bs = turn_means(batch.need("entropy_bt", self.name), batch.mask_bt, batch, there_bs, self.name)
        scaled_bs = _unit(entropy_bs, counted_bs)
        gain_bs = (-self.k1 * scaled_bs).exp()
        gain_bs = gain_bs / _mean(gain_bs, counted_bs)
        bonus_bs = self.zeta * next_turn((-self.k2 * scaled_bs).exp(), there_bs, 0.0)
        out_bt = adv_bt * on_tokens(gain_bs, batch, self.name) + on_tokens(bonus_bs, batch, self.name)
        if self.center:
            own_bs = turn_means(adv_bt, batch.mask_bt, batch, there_bs, self.name)
            out_bt = out_bt - _mean(own_bs * gain_bs + bonus_bs, counted_bs)
        return torch.where(batch.active_bt & batch.stats_b[:, None], out_bt, 0)

    @override
    def code(self) -> str:
        lines = [
            "turns = int(turn_bt.max()) + 1",
            "there_bs = turns_there(turn_bt, mask_bt, turns)",
            "counted_bs = there_bs & counts_b[:, None]",
            "scaled_bs = _unit(mean_of_turns(old_entropy_bt, mask_bt, turn_bt, turns), counted_bs)",
            f"gain_bs = (-{self.k1!r} * scaled_bs).exp()",
            "gain_bs = gain_bs / _mean(gain_bs, counted_bs)",
            f"bonus_bs = {self.zeta!r} * next_turn((-{self.k2!r} * scaled_bs).exp(), there_bs, 0.0)",
        ]
        center = ""
        if self.center:
            lines.append("own_bs = mean_of_turns(adv_bt, mask_bt, turn_bt, turns)")
            center = " - _mean(own_bs * gain_bs + bonus_bs, counted_bs)"
        return "\n".join(
            [
                *lines,
                "adv_bt = adv_bt * to_tokens(gain_bs, turn_bt, mask_bt)",
                f"adv_bt = adv_bt + to_tokens(bonus_bs, turn_bt, mask_bt){center}",
                "adv_bt = torch.where(active_bt & counts_b[:, None], adv_bt, 0)",
            ]
        )

    @override
    def words(self) -> str:
        bonus = f"; plus {self.zeta:g} times the next turn's certainty" if self.zeta else ""
        center = "; then minus their mean over the turns of the batch" if self.center else ""
        return f"advantages of turns scaled by exp(-{self.k1:g}·H), H the turn's relative entropy{bonus}{center}"

    @override
    def formula(self) -> str:
        center = " - mean" if self.center else ""
        return (
            f"A ← A·g_k + {self.zeta:g}·f_{{k+1}}{center},  g = e^(-{self.k1:g}H)/mean e^(-{self.k1:g}H),  "
            f"f = e^(-{self.k2:g}H),  H ∈ [0, 1]"
        )


def _unit(value_bs: Tensor, counted_bs: Tensor) -> Tensor:
    """Return [B,S] (x - min)/(max - min + 1e-8) over the turns that count, within [0, 1]."""
    if not bool(counted_bs.any()):
        return torch.zeros_like(value_bs)
    low, high = value_bs[counted_bs].min(), value_bs[counted_bs].max()
    return ((value_bs - low) / (high - low + 1e-8)).clamp(0, 1)


def _mean(value_bs: Tensor, counted_bs: Tensor) -> Tensor:
    """Return the mean over the turns that count; 1 if there are none."""
    return value_bs[counted_bs].mean() if bool(counted_bs.any()) else value_bs.new_ones(())
