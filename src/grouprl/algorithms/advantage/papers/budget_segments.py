"""Credit for segments of a thought, each worth the mean reward of the completions sampled at its end."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.lines import is_from
from grouprl.algorithms.part import part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError

Prior = Literal["uniform", "linear", "base"]
Baseline = Literal["both", "v1only", "v2only", "none"]


@part("advantage")
class BudgetSegments(Advantage):
    """BRPO: a thought's segment between two budgets is judged by the completions sampled at its end (arXiv:2505.13438).

    `turn_bt` is the segment 0..S-1 of each thought token and `turn_reward_bs` the mean score r_s of the completions
    sampled where segment s ends. Ret_s = Σ_{j≥s} P_j r_j over a prior P of budgets: uniform, linear (budget s weighs s
    + 1, for equally spaced ones) or all on the last. The baseline mixes V1_s = Σ_{j≥s} P_j · Σ_{j<s} 2^j r_j / Σ_{j<s}
    2^j, which knows only earlier scores of the same thought, with V2_s, the group's mean of Ret_s: (s V1 + (S-s) V2)/S.
    Rows of source 'extra' are the completions: R minus the mean of the rows of the same `keys.cut`.
    """

    prior: Prior = "uniform"
    baseline: Baseline = "both"
    reads = ("turn_bt", "turn_reward_bs", "keys.cut")

    def __call__(self, batch: Batch) -> Tensor:
        """Return Ret_s - baseline_s on thoughts, R - mean_cut R on completions."""
        sample_b = batch.from_source("extra")
        return torch.where(sample_b[:, None], self._completions(batch, sample_b), self._thoughts(batch, sample_b))

    @override
    def code(self) -> str:
        prior = {
            "uniform": "torch.full_like(turn_reward_bs[0], 1 / segments)",
            "linear": "torch.arange(1, segments + 1, dtype=reward_b.dtype) * 2 / (segments * (segments + 1))",
            "base": "torch.arange(1, segments + 1) // segments",
        }[self.prior]
        share = "torch.arange(segments, dtype=reward_b.dtype) / segments"
        baseline = {
            "both": f"({share}) * own_bs + (1 - {share}) * group_bs",
            "v1only": "own_bs",
            "v2only": "group_bs",
            "none": "0",
        }[self.baseline]
        return (
            f"extra_b = {is_from('extra')}  # completions sampled at the end of a segment\n"
            'cut_bb = same_bb & extra_b & (keys["cut"][:, None] == keys["cut"])\n'
            "answer_b = centered(reward_b, cut_bb) * (extra_b & counts_b)\n"
            "segments, thought_bb = turn_reward_bs.shape[1], (same_bb & ~extra_b).to(reward_b.dtype)\n"
            f"prior_s = {prior}\n"
            "return_bs = (prior_s * turn_reward_bs).flip(1).cumsum(1).flip(1)\n"
            "group_bs = thought_bb @ return_bs / thought_bb.sum(1, keepdim=True).clamp(min=1)\n"
            "own_bs = earlier(turn_reward_bs) * prior_s.flip(0).cumsum(0).flip(0)\n"
            f"adv_bs = (return_bs - ({baseline})) * (~extra_b & counts_b)[:, None]\n"
            "adv_bt = torch.where(extra_b[:, None], answer_b[:, None] * mask_bt, to_tokens(adv_bs, turn_bt, mask_bt))"
        )

    def _completions(self, batch: Batch, sample_b: Tensor) -> Tensor:
        id_b = levels.cross(batch.group_b, batch.need("keys.cut", self.name))
        counted_b = (sample_b & batch.stats_b).to(batch.dtype)
        return batch.broadcast(levels.relative(batch.total_reward_b, id_b, scale="none", weight_n=counted_b))

    def _thoughts(self, batch: Batch, sample_b: Tensor) -> Tensor:
        segment_bt = torch.where(batch.mask_bt & ~sample_b[:, None], batch.need("turn_bt", self.name), -1)
        score_bs = batch.need("turn_reward_bs", self.name)
        if bool((segment_bt >= score_bs.shape[1]).any()):
            raise InputError(
                f"turn_bt has segment {int(segment_bt.max())}, turn_reward_bs has only {score_bs.shape[1]} segments",
                "every segment of a thought needs the score of the completions sampled at its end",
            )
        counted_b = (~sample_b & batch.stats_b).to(batch.dtype)
        adv_bs = self.segment_advantages(score_bs, batch.group_b, counted_b) * counted_b[:, None]
        return torch.where(segment_bt >= 0, adv_bs.gather(1, segment_bt.clamp(min=0)), 0)

    def segment_advantages(self, score_bs: Tensor, group_b: Tensor, counted_b: Tensor) -> Tensor:
        """Return [B,S] Ret_s - baseline_s from the scores [B,S]; rows that are not `counted_b` do not
        enter the mean.
        """
        segments = score_bs.shape[1]
        prior_s = self.weights(segments).to(score_bs)
        return_bs = (prior_s * score_bs).flip(1).cumsum(1).flip(1)
        columns = [levels.mean(column_b, group_b, counted_b) for column_b in return_bs.unbind(1)]
        group_bs = torch.stack(columns, 1)
        own_bs = earlier(score_bs) * prior_s.flip(0).cumsum(0).flip(0)
        share_s = torch.arange(segments, dtype=score_bs.dtype, device=score_bs.device) / segments
        baseline_bs = {
            "both": share_s * own_bs + (1 - share_s) * group_bs,
            "v1only": own_bs,
            "v2only": group_bs,
            "none": torch.zeros_like(return_bs),
        }[self.baseline]
        return return_bs - baseline_bs

    def weights(self, segments: int) -> Tensor:
        """Return [S] prior of the budgets, sums to 1."""
        raw_s = torch.arange(1, segments + 1, dtype=torch.float64)
        if self.prior == "uniform":
            raw_s = torch.ones_like(raw_s)
        elif self.prior == "base":
            raw_s = (raw_s == segments).to(raw_s.dtype)
        return raw_s / raw_s.sum()

    @override
    def words(self) -> str:
        against = {
            "both": "earlier scores of the same thought and of the group",
            "v1only": "earlier scores of the same thought",
            "v2only": "the group's mean",
            "none": "nothing",
        }[self.baseline]
        return (
            f"each segment of a thought earns the scores of the completions after it ({self.prior} prior over "
            "budgets), "
            f"compared with {against}; the completions themselves are compared at the same cut"
        )

    @override
    def formula(self) -> str:
        baseline = {"both": "(s·V1_s + (S-s)·V2_s)/S", "v1only": "V1_s", "v2only": "V2_s", "none": "0"}[self.baseline]
        return f"A_s = Σ_{{j≥s}} P_j r_j - {baseline};  completions: A = R - mean_cut R"


def earlier(score_bs: Tensor) -> Tensor:
    """Return [B,S] Σ_{j<s} 2^j r_j / Σ_{j<s} 2^j: mean of the scores before s, the latest weighing most; 0 at s = 0."""
    power_s = 2.0 ** torch.arange(score_bs.shape[1], dtype=score_bs.dtype, device=score_bs.device)
    before_bs = (power_s * score_bs).cumsum(1) - power_s * score_bs
    return before_bs / (power_s.cumsum(0) - power_s).clamp(min=1)
