"""Baselines of a single paper each: weighted by length (OPO), the greedy completion's reward (ReMax)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage, Relative
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.levels import Alone


@part("advantage")
class LengthWeighted(Advantage):
    """Reward minus the length-weighted mean reward of its group, Σ l R / Σ l (OPO, arXiv:2505.23585).

    The optimal baseline when a sequence's squared gradient norm is proportional to its length; Σ l A = 0.
    """

    key: str = "group"
    alone: Alone = "zero"
    says = "reward minus the length-weighted mean reward of its {key}; a {key} of one: {alone}"
    equation = "A_i = R_i - Σ_j |y_j| R_j / Σ_j |y_j|"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if self.key != "group":
            return ""
        lone = "reward_b" if self.alone == "raw" else "0"
        return f"""length_bb = same_bb * mask_bt.sum(1)
adv_b = reward_b - (length_bb * reward_b).sum(1) / length_bb.sum(1).clamp(min=1)
adv_b = torch.where(differs(reward_b, same_bb), adv_b, 0)
adv_b = torch.where(same_bb.sum(1) > 1, adv_b, {lone})
adv_bt = torch.where(mask_bt & counts_b[:, None], adv_b[:, None], 0)"""

    def __call__(self, batch: Batch) -> Tensor:
        """Return A_i = R_i - Σ_j l_j R_j / Σ_j l_j."""
        reward_b, id_b, weight_b = batch.total_reward_b, batch.grouping(self.key), batch.stats_b.to(batch.dtype)
        alone_b = levels.relative(reward_b, id_b, scale="none", alone=self.alone, weight_n=weight_b)
        around_b = (reward_b - levels.mean(reward_b, id_b, weight_b * batch.length_b)) * weight_b
        return batch.broadcast(torch.where(levels.differs(reward_b, id_b, weight_b), around_b, alone_b))

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which have nothing to be compared with."""
        return Relative(self.key, alone=self.alone).refuse(run)


@part("advantage")
class GreedyBaseline(Advantage):
    """Reward minus the reward of the greedy completion of the same prompt (ReMax, arXiv:2310.10505).

    `limit` clips that difference; a token's own reward (a KL penalty in the reward) is added to the token alone, not
    summed over the future, as in the authors' code. `gamma` discounts by the distance d to the end, d = 1 at the last
    token.
    """

    limit: Annotated[float, Field(gt=0)] | None = None
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    reads = ("greedy_reward_b",)

    def __call__(self, batch: Batch) -> Tensor:
        """Return A_t = γ^d·clip(R - R_greedy) + r_t."""
        gap_b = batch.reward_b - batch.need("greedy_reward_b", self.name)
        if self.limit is not None:
            gap_b = gap_b.clamp(-self.limit, self.limit)
        mask_bt = batch.mask_bt.to(batch.dtype)
        distance_bt = mask_bt.flip(1).cumsum(1).flip(1)
        adv_bt = gap_b[:, None] * self.gamma**distance_bt if self.gamma < 1 else batch.broadcast(gap_b)
        return adv_bt * mask_bt if batch.token_reward_bt is None else adv_bt * mask_bt + batch.token_reward_bt

    @override
    def code(self) -> str:
        limit = "" if self.limit is None else f".clamp({-self.limit!r}, {self.limit!r})"
        discount = "" if self.gamma == 1 else f" * {self.gamma!r} ** mask_bt.flip(1).cumsum(1).flip(1)"
        return f"adv_bt = (reward_b - greedy_reward_b){limit}[:, None]{discount} * mask_bt"

    @override
    def words(self) -> str:
        limit = "" if self.limit is None else f", clipped to ±{self.limit:g}"
        discount = "" if self.gamma == 1 else f", discounted by {self.gamma:g} per token from the end"
        return f"reward minus the reward of the greedy completion of the same prompt{limit}{discount}"

    @override
    def formula(self) -> str:
        return "A = R - R_greedy" if self.limit is None else f"A = clip(R - R_greedy, ±{self.limit:g})"
