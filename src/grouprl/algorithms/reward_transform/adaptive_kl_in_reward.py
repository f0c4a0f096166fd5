"""KL in the reward, with a weight that follows the KL (verl's adaptive controller)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.regularize.kl import FORMULA
from grouprl.algorithms.regularize.kl_control import Controlled
from grouprl.algorithms.reward_transform.reward_transform import KLInReward
from grouprl.core.batch import Batch


@part("reward_transform", name="adaptive_kl_in_reward")
class AdaptiveKLInReward(KLInReward, Controlled):
    """KL in the reward with a weight that keeps the KL near `target` (verl's kl_ctrl of type adaptive).

    As `kl_in_reward`, with β from the run's controller: after a step whose KL, the mean over completions of their
    token mean, is KL, β ← β·(1 + clip(KL/target - 1, ±0.2)·B/horizon).
    """

    coef: Annotated[float, Field(ge=0)] = 0.001
    target: Annotated[float, Field(gt=0)] = 0.1
    horizon: Annotated[int, Field(ge=1)] = 10_000

    def weight(self, batch: Batch) -> Tensor:
        """Return [B,1] β of this step."""
        return batch.need("past.kl_coef", self.name)[:, None]

    def needs(self) -> tuple[str, ...]:
        """Return the names of the Batch fields that the part reads."""
        return (*super().needs(), "past.kl_coef") if self.coef else ()

    def words(self) -> str:
        """Return a sentence on what the part does."""
        return (
            f"subtract β times the KL to the reference ({self.estimator}) from the {self.level}'s reward; {self.rule()}"
        )

    def formula(self) -> str:
        """Return the formula, with the settings filled in."""
        where = "r_t ← r_t - β·" if self.level == "token" else "R ← R - β·Σ_t "
        return f"{where}[{FORMULA[self.estimator]}],  d = log π_old(y_t) - log π_ref(y_t),  {self.law()}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if its coefficient is 0."""
        return self.no_weight()
