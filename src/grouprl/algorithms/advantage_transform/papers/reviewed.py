"""Advantages of methods in which the policy reviews its episodes: R³L."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.lines import is_from
from grouprl.algorithms.part import part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("advantage_transform")
class AmplifyPositive(AdvantageTransform):
    """Positive amplification (R³L, arXiv:2601.03715): advantage 1 at a perfect reward, else α times a positive one.

    A reward of at least `perfect` gives exactly 1, whatever the group, so that groups of only perfect completions are
    still learnt from. None: no reward counts as perfect.
    """

    factor: Annotated[float, Field(gt=0)] = 3.0
    perfect: float | None = 1.0

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return 1 where R ≥ perfect; α·A where A > 0; else A."""
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

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        raised = f"adv_bt = torch.where(adv_bt > 0, {self.factor!r} * adv_bt, adv_bt)"
        if self.perfect is None:
            return raised
        return f"""{raised}
adv_bt = torch.where((reward_b >= {self.perfect!r})[:, None], mask_bt.to(adv_bt.dtype), adv_bt)"""


@part("advantage_transform")
class AdvantageOfReviewed(AdvantageTransform):
    """A review has the mean advantage of the rows that resulted from it: those with the same
    `keys.review` (Search-R2).
    """

    says = "a review has the advantage of the episode that came of it"
    equation = "A_review = A of its episode"
    reads = ("keys.review",)

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return advantages in which a review has the mean A over the other rows of its `keys.review`."""
        review_b = batch.from_source("review")
        adv_b = torch.where(batch.mask_bt, adv_bt, 0).sum(1) / batch.length_b.clamp(min=1)
        of_b = levels.mean(adv_b, batch.need("keys.review", self.name), (~review_b).to(adv_bt.dtype))
        return torch.where(review_b[:, None], batch.broadcast(of_b), adv_bt)

    @override
    def code(self) -> str:
        return (
            f"review_b = {is_from('review')}\n"
            "own_b = torch.where(mask_bt, adv_bt, 0).sum(1) / mask_bt.sum(1).clamp(min=1)\n"
            'result_bb = (keys["review"][:, None] == keys["review"]) & ~review_b\n'
            "adv_bt = torch.where(review_b[:, None], mean(own_b, result_bb)[:, None] * mask_bt, adv_bt)"
        )
