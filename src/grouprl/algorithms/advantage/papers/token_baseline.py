"""The baseline of least variance, one for each position of a group (verl's optimal token baseline)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.advantage.returns import discounted, token_rewards
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("advantage")
class TokenBaseline(Advantage):
    """A_t = G_t - B_t, B_t = Σ_i G_it·W_it / (Σ_i W_it + eps) over the group's completions that have a token t.

    G is the return from token t on; W_t = Σ_{j≤t} (1 - 2π_j + Σ_a π_j(a)²) adds up the squared gradient norms of the
    logits so far, so that B_t is the baseline of least variance under the approximation that other gradients are alike.
    Positions are counted in action tokens. Beyond the length of the second longest completion, the longest has nothing
    to be compared with; with `zero_tail` its baseline there is 0, as it is for a completion alone in its group.
    """

    eps: Annotated[float, Field(ge=0)] = 1e-8
    zero_tail: bool = True
    equation = "A_t = G_t - Σ_i G_it W_it / Σ_i W_it,  W_t = Σ_{{j≤t}} (1 - 2π_j + Σ_a π_j(a)²)"
    reads = ("old_bt", "stats.collision")

    def __call__(self, batch: Batch) -> Tensor:
        """Return A_t = G_t - B_t."""
        mask_bt, old_bt = batch.mask_bt, batch.need("old_bt", self.name)
        counts_bt = (mask_bt & batch.stats_b[:, None]).to(batch.dtype)
        return_bt = discounted(token_rewards(batch), mask_bt, torch.ones_like(batch.reward_b))
        energy_bt = 1 - 2 * old_bt.exp() + batch.need("stats.collision", self.name)
        path_bt = torch.where(mask_bt, energy_bt, 0).cumsum(1) * counts_bt
        place_bt = torch.where(mask_bt, mask_bt.cumsum(1), 0)
        cell_n = levels.cross(batch.group_b[:, None].expand_as(place_bt).flatten(), place_bt.flatten())
        weighted_bt = levels.total((return_bt * path_bt).flatten(), cell_n).view_as(path_bt)
        base_bt = weighted_bt / (levels.total(path_bt.flatten(), cell_n).view_as(path_bt) + self.eps)
        company_bt = levels.count(cell_n, counts_bt.flatten(), batch.dtype).view_as(path_bt)
        lone_b = levels.count(batch.group_b, batch.stats_b.to(batch.dtype), batch.dtype) <= 1
        bare_bt = (company_bt <= 1) if self.zero_tail else lone_b[:, None].expand_as(mask_bt)
        adv_bt = torch.where(bare_bt, return_bt, return_bt - base_bt)
        return torch.where(mask_bt & batch.stats_b[:, None], adv_bt, 0)

    @override
    def code(self) -> str:
        bare = "company_bt <= 1" if self.zero_tail else "(same_bb.sum(1) <= 1)[:, None]"
        return (
            "last_bt = mask_bt & (mask_bt.flip(1).cumsum(1).flip(1) == 1)\n"
            "paid_bt = last_bt * reward_b[:, None] + token_reward_bt\n"
            "return_bt = discounted(paid_bt, mask_bt, torch.ones_like(reward_b))\n"
            "counts_bt = (mask_bt & counts_b[:, None]).to(reward_b.dtype)\n"
            'energy_bt = torch.where(mask_bt, 1 - 2 * old_bt.exp() + stats["collision"], 0)\n'
            "path_bt = energy_bt.cumsum(1) * counts_bt\n"
            "base_bt = sum_by_place(return_bt * path_bt, mask_bt, group_b)\n"
            f"base_bt = base_bt / (sum_by_place(path_bt, mask_bt, group_b) + {self.eps!r})\n"
            "company_bt = sum_by_place(counts_bt, mask_bt, group_b)\n"
            f"adv_bt = torch.where({bare}, return_bt, return_bt - base_bt) * counts_bt"
        )

    @override
    def words(self) -> str:
        tail = "; past the second longest completion there is no baseline" if self.zero_tail else ""
        return (
            "return from each token on, minus the group's mean return at that position, weighted by the squared "
            f"gradient norms up to it{tail}"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the baseline has no effect if groups hold one completion."""
        return ["the token baseline has no effect: groups hold one completion"] if run.group_size == 1 else []
