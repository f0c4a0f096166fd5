"""Weights that choose completions and tokens to train on: by entropy, by the spread of advantages, or at random.

A choice made once the advantages are known is a multiplier of 0 or 1; the aggregation `weighted_mean` then counts only
the tokens that were kept. Randomness is a hash of the log-probs: reproducible, and independent of the order of rows.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import part
from grouprl.algorithms.token_weight.token_weight import TokenWeight
from grouprl.core.batch import Batch
from grouprl.core.numbers import PositiveShare

Score = Literal["entropy", "advantage_entropy"]
_SCORE = {"entropy": "the entropy H_t", "advantage_entropy": "|A|·H_t"}


@part("token_weight")
class TopTokens(TokenWeight):
    """Keep the tokens whose score lies in the top `fraction`, multiply the others by zero (arXiv:2506.01939, eq. 5).

    The score is the sampler's entropy at the token, or |A|·H (D3S). The threshold is the (1 - fraction)-quantile over
    the tokens that still count in the rollout (`over="batch"`) or in each completion; ties at the threshold are kept.
    """

    fraction: PositiveShare = 0.2
    score: Score = "entropy"
    over: Literal["batch", "sequence"] = "batch"
    reads = ("entropy_bt",)
    idle_at = ("fraction", 1, "top_tokens has no effect: its fraction is 1")

    def __call__(self, batch: Batch) -> Tensor:
        """Return [score_t ≥ quantile]."""
        candidate_bt = batch.active_bt if batch.multiplier_bt is None else batch.active_bt & (batch.multiplier_bt != 0)
        score_bt = batch.need("entropy_bt", self.name)
        if self.score == "advantage_entropy":
            score_bt = score_bt * batch.need("advantage_bt", self.name).abs()
        score_rn = torch.where(candidate_bt, score_bt, -torch.inf)
        if self.over == "batch":
            score_rn = score_rn.reshape(1, -1)
        count_r = (score_rn > -torch.inf).sum(1, keepdim=True)
        last_r = (self.fraction * (count_r - 1).to(torch.float64) + 1e-9).floor().long().clamp(min=0)
        threshold_r = score_rn.sort(1, descending=True).values.gather(1, last_r)
        return (candidate_bt & (score_rn >= threshold_r).reshape(score_bt.shape)).to(batch.dtype)

    @override
    def code(self) -> str:
        score = "old_entropy_bt" if self.score == "entropy" else "old_entropy_bt * adv_bt.abs()"
        lines = [
            "candidate_bt = active_bt & (factor_bt != 0)",
            f"score_bt = torch.where(candidate_bt, {score}, -torch.inf)",
        ]
        if self.over == "batch":
            lines += [
                f"last = max(int({self.fraction!r} * (int(candidate_bt.sum()) - 1) + 1e-9), 0)",
                "least = score_bt.flatten().sort(descending=True).values[last]",
            ]
        else:
            lines += [
                "count_b1 = candidate_bt.sum(1, keepdim=True).double()",
                f"last_b1 = ({self.fraction!r} * (count_b1 - 1) + 1e-9).floor().long().clamp(min=0)",
                "least = score_bt.sort(1, descending=True).values.gather(1, last_b1)",
            ]
        return "\n".join([*lines, "factor_bt = factor_bt * (candidate_bt & (score_bt >= least))"])

    @override
    def words(self) -> str:
        where = "the rollout" if self.over == "batch" else "each completion"
        return f"train only on the {self.fraction:.0%} of tokens with the largest {_SCORE[self.score]} in {where}"

    @override
    def formula(self) -> str:
        score = "H_t" if self.score == "entropy" else "|A_t|·H_t"
        return f"× [{score} ≥ quantile_{1 - self.fraction:g}]"


def hashed(value_bt: Tensor, mask_bt: Tensor) -> Tensor:
    """Return [B,T] numbers in [0, 1) that look random: a hash of each value, its place and the other
    values of its row.
    """
    bits_bt = value_bt.detach().to(torch.float32).view(torch.int32).to(torch.int64)
    own_bt = torch.where(mask_bt, _mix(bits_bt + mask_bt.cumsum(1) * 0x9E3779B97F4A7C1), 0)
    whole_bt = _mix(own_bt ^ _mix(own_bt.sum(1, keepdim=True)))
    return (whole_bt & (2**53 - 1)).to(torch.float64) / 2**53


def _mix(x: Tensor) -> Tensor:
    """Scramble the bits of int64 numbers (multiplication wraps around)."""
    for factor in (0x7F51AFD7ED558CCD, 0x44CEB9FE1A85EC53):
        x = (x ^ (x >> 32)) * factor
    return x ^ (x >> 29)
