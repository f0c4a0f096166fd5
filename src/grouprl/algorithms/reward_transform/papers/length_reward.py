"""Rewards that depend on how long a correct completion is, compared with the other correct completions of its group or
a limit.

Which completions are right is the raw outcome (`outcome.right`). Lengths count the tokens the policy wrote.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.outcome import counted_right, right, right_share
from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


def lengths(batch: Batch) -> Tensor:
    """Return [B] the number of action tokens, in the dtype of the rewards."""
    return batch.length_b.to(batch.dtype)


def relative_length(batch: Batch) -> Tensor:
    """Return [B] z-score of each length among the correct completions of its group (sample std + 1e-6).

    0 if fewer than two completions are right, or if all right ones are equally long.
    """
    length_b, right_b = lengths(batch), counted_right(batch)
    std_b = levels.std(length_b, batch.group_b, right_b, sample=True)
    z_b = (length_b - levels.mean(length_b, batch.group_b, right_b)) / (std_b + 1e-6)
    return torch.where(std_b > 0, z_b, 0)


@part("reward_transform")
class RightLengthScore(RewardTransform):
    """GRPO-LEAD (arXiv:2504.09696): correct completions get R·exp(-α z), z their length's score among the group's right
    ones.

    Wrong completions get `wrong`. `free_length`: groups whose three shortest correct completions have at most this mean
    length keep R (the release has 4000 tokens; 0 shapes every group).
    """

    alpha: NonNegative = 0.05
    wrong: float = -1.0
    free_length: Annotated[int, Field(ge=0)] = 0
    equation = "R ← R·exp(-{alpha:g}·z_i) if right, else {wrong:g},  z = (|y| - mean_right)/(std_right + 1e-6)"
    plain = (
        "length_b, right_bb = mask_bt.sum(1).to(reward_b.dtype), same_bb & correct_b\n"
        "std_b = spread(length_b, right_bb)\n"
        "z_b = torch.where(std_b > 0, (length_b - mean(length_b, right_bb)) / (std_b + 1e-6), 0)\n"
        "place_b = rank(torch.where(correct_b & counts_b, length_b, torch.inf), group_b[:, None] == group_b)\n"
        "long_b = mean(length_b, right_bb & (place_b < 3)) > {free_length}  # the three shortest right ones\n"
        "z_b = torch.where(long_b & correct_b, z_b, 0)\n"
        "reward_b = torch.where(correct_b, reward_b * (-{alpha!r} * z_b).exp(), {wrong!r})"
    )

    def __call__(self, batch: Batch) -> Batch:
        """Return R·exp(-α z_i) if right, else `wrong`."""
        right_b = right(batch)
        z_b = torch.where(self._long(batch) & right_b, relative_length(batch), 0)
        return batch.replace(reward_b=torch.where(right_b, batch.reward_b * (-self.alpha * z_b).exp(), self.wrong))

    def _long(self, batch: Batch) -> Tensor:
        """Return [B] bool: groups whose three shortest correct completions are longer than the free length."""
        right_b = counted_right(batch)
        by_length_b = torch.where(right_b > 0, lengths(batch), torch.inf)
        shortest_b = right_b * (levels.rank(by_length_b, batch.group_b) < 3)
        return levels.mean(lengths(batch), batch.group_b, shortest_b) > self.free_length

    @override
    def words(self) -> str:
        free = f", in groups whose shortest ones exceed {self.free_length} tokens" if self.free_length else ""
        return (
            f"scale the reward of correct completions down with their length among the group's right ones (rate "
            f"{self.alpha:g}){free}; wrong completions get {self.wrong:g}"
        )


@part("reward_transform")
class LengthWhenSolved(RewardTransform):
    """ConciseR's second stage (arXiv:2505.21178): a bonus for short completions once all completions of the group are
    right.

    R + c·(1 - |y|/Lmax) in groups without a wrong completion; everything else stays.
    """

    coef: NonNegative = 1.0
    says = "once all completions of a prompt are right, add up to {coef:g} for short ones"
    equation = "R ← R + {coef:g}·(1 - |y|/Lmax) where all of the group are right"
    reads = ("max_length",)
    plain = (
        "solved_b = mean(correct_b.to(reward_b.dtype), same_bb) == 1\n"
        "short_b = 1 - mask_bt.sum(1).to(reward_b.dtype) / max_length\n"
        "reward_b = reward_b + torch.where(solved_b, {coef!r} * short_b, 0)"
    )
    idle_at = ("coef", 0, "length_when_solved has no effect: its coefficient is 0")

    def __call__(self, batch: Batch) -> Batch:
        """Return R + c·(1 - |y|/Lmax) where the whole group is right."""
        longest = int(batch.need("max_length", self.name))
        bonus_b = self.coef * (1 - lengths(batch) / longest)
        return batch.replace(reward_b=batch.reward_b + torch.where(right_share(batch) == 1, bonus_b, 0))


@part("reward_transform")
class ShortestRight(RewardTransform):
    """A bonus for correct completions that are as short as the shortest correct completion of their group (self-guided
    efficiency).

    R + c·min_right |y| / |y_i|: c for the shortest, less for longer ones, nothing for wrong ones.
    """

    coef: NonNegative = 0.5
    says = "add {coef:g} times (length of the group's shortest correct completion / own length) to correct completions"
    equation = "R ← R + {coef:g}·[right]·min_right|y| / |y_i|"
    plain = (
        "length_b, right_bb = mask_bt.sum(1).to(reward_b.dtype), same_bb & correct_b\n"
        "shortest_b = torch.where(right_bb, length_b, torch.inf).amin(1)\n"
        "bonus_b = torch.where(correct_b & counts_b, shortest_b / length_b.clamp(min=1), 0)\n"
        "reward_b = reward_b + {coef!r} * bonus_b"
    )
    idle_at = ("coef", 0, "shortest_right has no effect: its coefficient is 0")

    def __call__(self, batch: Batch) -> Batch:
        """Return R + c·[right]·min_right |y| / |y_i|."""
        length_b = lengths(batch)
        shortest_b = levels.extreme(length_b, batch.group_b, counted_right(batch), largest=False)
        return batch.replace(
            reward_b=batch.reward_b + self.coef * counted_right(batch) * shortest_b / length_b.clamp(min=1)
        )


@part("reward_transform")
class CosineLength(RewardTransform):
    """Cosine length reward: correct completions from `right_short`·R down to `right_long`·R, wrong ones from -1 up to
    -0.5.

    Half a cosine over |y|/Lmax, constant beyond Lmax (arXiv:2502.03373; numbers of Open-RS, arXiv:2503.16219).
    """

    right_short: float = 1.0
    right_long: float = 0.5
    wrong_short: float = -1.0
    wrong_long: float = -0.5
    says = (
        "the reward of correct completions falls with length from {right_short:g} to {right_long:g} times "
        "itself; wrong ones get {wrong_short:g} when short, {wrong_long:g} at the limit"
    )
    equation = "R ← long + ½(short - long)(1 + cos(π|y|/Lmax)), its own pair for right and wrong"
    reads = ("max_length",)
    plain = (
        "share_b = (mask_bt.sum(1).to(reward_b.dtype) / max_length).clamp(max=1)\n"
        "half_b = 0.5 * (1 + torch.cos(math.pi * share_b))\n"
        "right_b = ({right_long!r} + ({right_short!r} - {right_long!r}) * half_b) * reward_b\n"
        "wrong_b = {wrong_long!r} + ({wrong_short!r} - {wrong_long!r}) * half_b\n"
        "reward_b = torch.where(correct_b, right_b, wrong_b)"
    )

    def __call__(self, batch: Batch) -> Batch:
        """Return long + ½(short - long)(1 + cos(π·min(|y|/Lmax, 1)))."""
        longest = int(batch.need("max_length", self.name))
        half_b = 0.5 * (1 + torch.cos(math.pi * (lengths(batch) / longest).clamp(max=1)))
        right_b = (self.right_long + (self.right_short - self.right_long) * half_b) * batch.reward_b
        wrong_b = self.wrong_long + (self.wrong_short - self.wrong_long) * half_b
        return batch.replace(reward_b=torch.where(right(batch), right_b, wrong_b))


@part("reward_transform")
class MinMaxLength(RewardTransform):
    """Kimi k1.5's length reward (arXiv:2501.12599): λ = ½ - (|y| - min_g)/(max_g - min_g), added to the reward.

    Correct completions get λ, wrong ones min(0, λ); nothing where all completions of the group are equally long.
    """

    coef: NonNegative = 1.0
    says = (
        "add {coef:g} times a score from ½ (the group's shortest completion) to -½ (its longest); wrong "
        "completions get only its negative part"
    )
    equation = "R ← R + {coef:g}·λ (wrong: min(0, λ)),  λ = ½ - (|y| - min_g)/(max_g - min_g)"
    idle_at = ("coef", 0, "min_max_length has no effect: its coefficient is 0")

    def __call__(self, batch: Batch) -> Batch:
        """Return R + c·λ if right, R + c·min(0, λ) if wrong."""
        length_b, counted_b = lengths(batch), batch.stats_b.to(batch.dtype)
        least_b = levels.extreme(length_b, batch.group_b, counted_b, largest=False)
        range_b = levels.extreme(length_b, batch.group_b, counted_b, largest=True) - least_b
        score_b = torch.where(range_b > 0, 0.5 - (length_b - least_b) / range_b.clamp(min=1), 0)
        return batch.replace(
            reward_b=batch.reward_b + self.coef * torch.where(right(batch), score_b, score_b.clamp(max=0))
        )
