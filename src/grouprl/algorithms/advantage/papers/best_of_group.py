"""Pass@k as the goal: only the best completion of a group is credited, by how far it beats the second best."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage, Relative
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("advantage")
class BestOverSecond(Advantage):
    """(R_max - R_second)/(std + eps) for the best of a group, 0 for all others (arXiv:2503.19595; verl's grpo_passk).

    The leave-one-out baseline of a group's best reward: leaving a completion out changes the group's best only if it is
    the best itself. Where two tie for best the advantage is 0, and so is that of a completion alone in its group.
    """

    key: str = "group"
    scale: Literal["none", "sample_std", "population_std"] = "sample_std"
    eps: Annotated[float, Field(ge=0)] = 1e-6

    def __call__(self, batch: Batch) -> Tensor:
        """Return A_i = [i best]·(R_max - R_second)/(std + eps)."""
        reward_b, id_b, counts_b = batch.total_reward_b, batch.grouping(self.key), batch.stats_b
        weight_b = counts_b.to(batch.dtype)
        best_b = levels.extreme(reward_b, id_b, weight_b, largest=True)
        top_b = counts_b & (reward_b == best_b)
        others_b = weight_b * (~top_b).to(weight_b.dtype)
        second_b = levels.extreme(reward_b, id_b, others_b, largest=True)
        single_b = top_b & (levels.count(id_b, top_b.to(weight_b.dtype)) == 1) & (levels.count(id_b, weight_b) > 1)
        gap_b = torch.where(single_b, best_b - second_b, 0)
        if self.scale != "none":
            std_b = levels.std(reward_b, id_b, weight_b, sample=self.scale == "sample_std")
            gap_b = torch.where(single_b, gap_b / (std_b + self.eps), 0)
        return batch.broadcast(gap_b)

    def code(self) -> str:
        """Return the part as lines of plain torch; '' for another grouping."""
        if self.key != "group":
            return ""
        lines = """best_b = torch.where(same_bb, reward_b, -torch.inf).amax(1)
top_b = counts_b & (reward_b == best_b)
second_b = torch.where(same_bb & ~top_b, reward_b, -torch.inf).amax(1)
single_b = top_b & ((same_bb & top_b).sum(1) == 1) & (same_bb.sum(1) > 1)
adv_b = torch.where(single_b, best_b - second_b, 0)
"""
        if self.scale != "none":
            less = "n_b - 1" if self.scale == "sample_std" else "n_b"
            lines += f"""n_b = same_bb.sum(1)
mean_b = (same_bb * reward_b).sum(1) / n_b.clamp(min=1)
std_b = ((same_bb * (reward_b - mean_b[:, None]).square()).sum(1) / ({less}).clamp(min=1)).sqrt()
adv_b = torch.where(single_b, adv_b / (std_b + {self.eps!r}), 0)
"""
        return f"{lines}adv_bt = adv_b[:, None] * mask_bt"

    @override
    def words(self) -> str:
        scale = "" if self.scale == "none" else f", divided by the {self.scale.replace('_', ' ')} + {self.eps:g}"
        return f"the best completion of a {self.key} gets how far it beats the second best{scale}; all others get 0"

    @override
    def formula(self) -> str:
        scale = "" if self.scale == "none" else f" / (std_g R + {self.eps:g})"
        return f"A_i = [R_i = max R]·(max R - second R){scale}"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, in which there is no second best."""
        return Relative(self.key).refuse(run)
