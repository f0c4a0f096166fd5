"""Advantages that remember what a prompt's completions earned at earlier visits (DCPO)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch

NO_SPREAD = 1e-6
"""Largest cumulative standard deviation that still counts as no spread."""


@part("advantage")
class SmoothStandardized(Advantage):
    """Blend a reward standardised in its group with that over all visits of the prompt (DCPO, arXiv:2509.02333).

    At visit i: SA_1 = A_tot/i + (1 - 1/i)A_new and SA_2 = A_new/i + (1 - 1/i)A_tot; A is the smaller in size, at the
    first visit A_new. A_tot uses moments over the visits, this one included, each visit with equal weight:
    mean = (nμ + μ_new)/(n+1), var = (n s² + s_new² + n/(n+1)(μ_new - μ)²)/(n+1). Without spread A_new or A_tot is 0.
    """

    scale: Literal["sample_std", "population_std"] = "sample_std"
    eps: Annotated[float, Field(ge=0)] = 1e-6
    says = (
        "the reward standardised in its group, blended with that over all visits of the prompt; of the two "
        "blends the smaller"
    )
    equation = "A = min_|·|(A_tot/i + (1-1/i)·A_new, A_new/i + (1-1/i)·A_tot) at visit i, A_new at the first"
    reads = ("past.visits", "past.mean", "past.std")

    def __call__(self, batch: Batch) -> Tensor:
        """Return the smaller of SA_1 and SA_2, [B,T]."""
        reward_b, counted_b = batch.total_reward_b, batch.stats_b.to(batch.dtype)
        new_b = levels.relative(reward_b, batch.group_b, scale=self.scale, eps=self.eps, weight_n=counted_b)
        mean_b, std_b = self.moments(batch)
        far_b = (reward_b - mean_b) / (std_b + self.eps).clamp(min=1e-30)
        total_b = torch.where((std_b > NO_SPREAD) & batch.stats_b, far_b, 0)
        visits_b = batch.need("past.visits", self.name)
        share_b = 1 / (visits_b + 1)
        first_b = share_b * total_b + (1 - share_b) * new_b
        second_b = share_b * new_b + (1 - share_b) * total_b
        smooth_b = torch.where(first_b.abs() <= second_b.abs(), first_b, second_b)
        return batch.broadcast(torch.where(visits_b > 0, smooth_b, new_b))

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        less = int(self.scale == "sample_std")
        return (
            'visits_b, was_b = past["visits"], past["mean"]\n'
            f"mean_b, std_b = mean(reward_b, same_bb), spread(reward_b, same_bb, {less})\n"
            f"new_b = standardised(reward_b, same_bb, {self.eps!r}, {less}) * counts_b\n"
            "all_mean_b = (visits_b * was_b + mean_b) / (visits_b + 1)\n"
            "moved_b = visits_b / (visits_b + 1) * (mean_b - was_b).square()\n"
            'all_std_b = ((visits_b * past["std"].square() + std_b.square() + moved_b) / (visits_b + 1)).sqrt()\n'
            f"all_b = (reward_b - all_mean_b) / (all_std_b + {self.eps!r}).clamp(min=1e-30)\n"
            f"all_b = torch.where((all_std_b > {NO_SPREAD!r}) & counts_b, all_b, 0)\n"
            "share_b = 1 / (visits_b + 1)\n"
            "first_b = share_b * all_b + (1 - share_b) * new_b\n"
            "second_b = share_b * new_b + (1 - share_b) * all_b\n"
            "smooth_b = torch.where(first_b.abs() <= second_b.abs(), first_b, second_b)\n"
            "adv_bt = torch.where(visits_b > 0, smooth_b, new_b)[:, None] * mask_bt"
        )

    def moments(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return [B] mean and standard deviation of the prompt's rewards over all visits, this one included."""
        counted_b, n_b = batch.stats_b.to(batch.dtype), batch.need("past.visits", self.name)
        was_b, spread_b = batch.need("past.mean", self.name), batch.need("past.std", self.name)
        mean_b = levels.mean(batch.total_reward_b, batch.group_b, counted_b)
        std_b = levels.std(batch.total_reward_b, batch.group_b, counted_b, sample=self.scale == "sample_std")
        moved_b = n_b / (n_b + 1) * (mean_b - was_b).square()
        variance_b = (n_b * spread_b.square() + std_b.square() + moved_b) / (n_b + 1)
        return (n_b * was_b + mean_b) / (n_b + 1), variance_b.sqrt()

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if no prompt is sampled twice."""
        if run.examples is None or run.steps * run.prompts <= run.examples:
            return [
                "smooth_standardized has no memory to use: no prompt comes twice in this run. "
                "Use fewer training prompts (data.prompts) or more steps"
            ]
        return []
