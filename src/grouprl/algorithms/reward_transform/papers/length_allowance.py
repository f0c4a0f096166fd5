"""A budget of tokens for each prompt, from how difficult it is and how unsure the policy is (PixelThink)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.outcome import right_share
from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.papers.length_reward import lengths
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import NonNegative, Positive


@part("reward_transform")
class LengthAllowance(RewardTransform):
    """PixelThink: multiply rewards by what is left of an allowance that only tokens beyond a budget use up.

    R·clip(1 - (|y| - b)/fade, 0, 1). Prompts of a difficulty d of at least `hard` get b = `base` + `per_nat`·u, those
    below `easy` b = `short`, and those in between keep R. Sources: songw-zju/PixelThink, whose numbers for thoughts of
    a vision-language model are the defaults. Differs: d and u are scores that come with the paper's data; here they are
    measured on the group, d = 1 + 9·(the share of completions that are wrong) and u = the mean entropy of a token, in
    nats; and the whole completion counts, in tokens instead of words.
    """

    hard: NonNegative = 5.0
    easy: NonNegative = 3.5
    base: NonNegative = 256.0
    per_nat: NonNegative = 25.0
    short: NonNegative = 96.0
    fade: Positive = 500.0
    says = (
        "rewards shrink with each token beyond a budget, to nothing {fade:g} tokens beyond it; it is {short:g} tokens "
        "for easy prompts, {base:g} and {per_nat:g} more per nat of entropy for hard ones"
    )
    equation = (
        "R ← R·clip(1 - (|y| - b)/{fade:g}, 0, 1),  b = {base:g} + {per_nat:g}·H_g if d ≥ {hard:g}, {short:g} if "
        "d < {easy:g}, else ∞,  d = 1 + 9·(wrong share of the group)"
    )
    reads = ("entropy_bt",)
    plain = (
        "difficulty_b = 1 + 9 * (1 - mean(correct_b.to(reward_b.dtype), same_bb))\n"
        "unsure_b = mean((old_entropy_bt * mask_bt).sum(1) / mask_bt.sum(1).clamp(min=1), same_bb)\n"
        "hard_b = {base!r} + {per_nat!r} * unsure_b\n"
        "easy_b = torch.where(difficulty_b < {easy!r}, {short!r}, torch.inf)\n"
        "budget_b = torch.where(difficulty_b >= {hard!r}, hard_b, easy_b)\n"
        "reward_b = reward_b * (1 - (mask_bt.sum(1) - budget_b) / {fade!r}).clamp(0, 1)"
    )

    def __post_init__(self) -> None:
        """Refuse a `hard` below `easy`."""
        if self.hard < self.easy:
            raise InputError(
                f"hard={self.hard:g} is below easy={self.easy:g}",
                "a prompt is easy, hard or in between",
                "Give hard a value of at least easy",
            )

    def __call__(self, batch: Batch) -> Batch:
        """Return R·clip(1 - (|y| - b)/fade, 0, 1)."""
        beyond_b = lengths(batch) - self.budget(difficulty(batch), unsureness(batch, self.name))
        return batch.replace(reward_b=batch.reward_b * (1 - beyond_b / self.fade).clamp(0, 1))

    def budget(self, difficulty_b: Tensor, unsure_b: Tensor) -> Tensor:
        """Return [B] the number of tokens that cost nothing, infinite for prompts of middling difficulty."""
        hard_b = self.base + self.per_nat * unsure_b
        return torch.where(
            difficulty_b >= self.hard, hard_b, torch.where(difficulty_b < self.easy, self.short, torch.inf)
        )


def difficulty(batch: Batch) -> Tensor:
    """Return [B] from 1 (all completions of the group are right) to 10 (none is)."""
    return 1 + 9 * (1 - right_share(batch))


def unsureness(batch: Batch, reader: str) -> Tensor:
    """Return [B] the group's mean entropy of a token, in nats; each completion counts alike."""
    mask_bt = batch.mask_bt.to(batch.dtype)
    entropy_b = (batch.need("entropy_bt", reader) * mask_bt).sum(1) / mask_bt.sum(1).clamp(min=1)
    return levels.mean(entropy_b, batch.group_b, batch.stats_b.to(batch.dtype))
