"""Advantages and rewards of methods in which the policy reviews its episodes: R³L, Search-R2."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantages.normalize import Normalize
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.rewards.shaping import RewardTransform
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import NonNegative


@part("advantage_transform")
class AmplifyPositive(Normalize):
    """Positive amplification (R³L, arXiv:2601.03715): advantage 1 at a perfect reward, else α times a positive one.

    A reward of at least `perfect` gives exactly 1, whatever the group, so that groups of perfect completions alone go
    on being learnt from. None: no reward is perfect.
    """

    factor: Annotated[float, Field(gt=0)] = 3.0
    perfect: float | None = 1.0

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """1 where R ≥ perfect; α·A where A > 0; else A."""
        raised_bt = torch.where(adv_bt > 0, self.factor * adv_bt, adv_bt)
        if self.perfect is None:
            return raised_bt
        perfect_b = batch.total_reward_b >= self.perfect
        return torch.where(perfect_b[:, None], batch.mask_bt.to(adv_bt.dtype), raised_bt)

    @override
    def words(self) -> str:
        perfect = "" if self.perfect is None else f"; a reward of at least {self.perfect:g} gives the advantage 1"
        return f"positive advantages count {self.factor:g} times{perfect}"

    @override
    def formula(self) -> str:
        rest = f"{self.factor:g}·A if A > 0 else A"
        return f"A ← {rest}" if self.perfect is None else f"A ← 1 if R ≥ {self.perfect:g} else {rest}"


@part("advantage_transform")
class AdvantageOfReviewed(Normalize):
    """A review has the mean advantage of the rows that came of it: those of the same `keys.review` (Search-R2)."""

    says = "a review has the advantage of the episode that came of it"
    equation = "A_review = A of its episode"
    reads = ("keys.review",)

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """A_review = mean of A over the other rows of its `keys.review`, each with the mean of its tokens."""
        review_b = batch.from_source("review")
        adv_b = torch.where(batch.mask_bt, adv_bt, 0).sum(1) / batch.length_b.clamp(min=1)
        of_b = levels.mean(adv_b, batch.need("keys.review", self.name), (~review_b).to(adv_bt.dtype))
        return torch.where(review_b[:, None], batch.broadcast(of_b), adv_bt)


@part("reward_transform")
class OutcomeGatedProcess(RewardTransform):
    """R = r_o·(1 + c·r_p): a process reward that pays only together with the outcome (Search-R2, arXiv:2602.03647).

    r_p is the reward component `component`, 0 for rows that have none.
    """

    coef: NonNegative = 1.0
    component: str = "#density"
    says = "the reward grows by {coef:g} times its share of '{component}'"
    equation = "R ← R·(1 + {coef:g}·r_p),  r_p = {component}"

    def __call__(self, batch: Batch) -> Batch:
        """R·(1 + c·r_p)."""
        if self.coef == 0:
            return batch
        if self.component not in batch.rewards:
            raise InputError(
                f"{self.name} needs batch.rewards.{self.component}, which this environment does not give",
                f"its components are {', '.join(batch.rewards) or 'none'}",
                "Let its score() return it, or set the coefficient (process) to 0",
            )
        process_b = batch.rewards[self.component].to(batch.dtype).nan_to_num(0.0)
        return batch.replace(reward_b=batch.reward_b * (1 + self.coef * process_b))

    @override
    def needs(self) -> tuple[str, ...]:
        return (f"rewards.{self.component}",) if self.coef else ()

    def idle(self, run: RunFacts) -> list[str]:
        """No coefficient."""
        return ["outcome_gated_process has no effect: its coefficient is 0"] if self.coef == 0 else []
