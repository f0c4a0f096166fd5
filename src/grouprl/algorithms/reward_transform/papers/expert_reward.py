"""Rewards of single tokens from a preference model that was trained before the run (RTO)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("reward_transform")
class ExpertReward(RewardTransform):
    """Reward a token by how much likelier a preference model finds it than the reference (RTO, arXiv:2404.18922).

    r_t += clip(β·(log π_expert - log π_ref), ±limit), clipped after scaling; with None nothing is clipped. The
    unclipped rewards of a completion add up to the preference model's implicit reward.
    """

    coef: NonNegative = 0.05
    limit: Annotated[float, Field(gt=0)] | None = 0.05
    idle_at = ("coef", 0, "the expert's reward has no effect: its coefficient is 0")

    def __call__(self, batch: Batch) -> Batch:
        """Return r_t = r_t + clip(β·log(π_expert/π_ref), ±limit)."""
        if self.coef == 0:
            return batch
        log_bt = batch.need("stats.expert", self.name) - batch.need("ref_bt", self.name)
        dense_bt = self.coef * log_bt
        if self.limit is not None:
            dense_bt = dense_bt.clamp(-self.limit, self.limit)
        dense_bt, before_bt = torch.where(batch.mask_bt, dense_bt, 0), batch.token_reward_bt
        return batch.replace(token_reward_bt=dense_bt if before_bt is None else before_bt + dense_bt)

    @override
    def code(self) -> str:
        limit = "" if self.limit is None else f".clamp({-self.limit!r}, {self.limit!r})"
        return (
            f'dense_bt = ({self.coef!r} * (stats["expert"] - ref_bt)){limit}\n'
            "token_reward_bt = token_reward_bt + torch.where(mask_bt, dense_bt, 0)"
        )

    @override
    def needs(self) -> tuple[str, ...]:
        return ("stats.expert", "ref_bt") if self.coef else ()

    @override
    def words(self) -> str:
        clip = "" if self.limit is None else f", within ±{self.limit:g}"
        return (
            f"add {self.coef:g} times the log-ratio of the preference model to the reference to each token's "
            f"reward{clip}"
        )

    @override
    def formula(self) -> str:
        dense = f"{self.coef:g}·log(π_expert/π_ref)(y_t)"
        return f"r_t ← r_t + {dense}" if self.limit is None else f"r_t ← r_t + clip({dense}, ±{self.limit:g})"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        if self.coef > 0 and not run.has_reference:
            return ["the expert's reward needs a reference model. Set model.reference: initial"]
        return []
