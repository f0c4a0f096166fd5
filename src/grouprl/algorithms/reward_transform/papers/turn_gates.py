"""Rewards of an episode that depend on a condition or on how they were earned: gates, frugality, repetition."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.lines import PAY, SPLIT
from grouprl.algorithms.outcome import counted_right, right
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.reward_transform.papers.turn_rewards import with_turn_rewards
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.algorithms.turn_returns import has_turn, same_actions, turn_rewards, turns_of
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative, Positive


@part("reward_transform")
class RewardGate(RewardTransform):
    """G-RA: rewards of turns count only if the outcome is above its threshold.

    R = R_O + w·[R_O > threshold]·Σ_k r_k. `outcome` "rest": R_O is the episode's reward without the rewards of its
    turns; "correct": the gate is open for right episodes. No `threshold`: always open (the paper's D-RA).
    """

    threshold: float | None = 0.0
    weight: NonNegative = 1.0
    outcome: Literal["rest", "correct"] = "rest"
    reads = ("turn_bt", "turn_reward_bs")

    def __call__(self, batch: Batch) -> Batch:
        """Return r_k·w·[R_O > threshold]."""
        there_bs = has_turn(batch, batch.need("turn_reward_bs", self.name).shape[1], self.name)
        reward_bs, rest_b = turn_rewards(batch, there_bs, self.name)
        open_b = torch.ones_like(rest_b, dtype=torch.bool)
        if self.outcome == "correct":
            open_b = right(batch)
        elif self.threshold is not None:
            open_b = rest_b > self.threshold
        return with_turn_rewards(batch, self.weight * reward_bs * open_b[:, None], there_bs, self.name)

    @override
    def code(self) -> str:
        lines = list(SPLIT)
        gate = ""
        if self.outcome == "correct":
            gate = " * correct_b[:, None]"
        elif self.threshold is not None:
            gate = f" * (rest_b > {self.threshold!r})[:, None]"
        return "\n".join([*lines, f"turn_reward_bs = {self.weight!r} * paid_bs{gate}", PAY])

    @override
    def words(self) -> str:
        if self.outcome == "correct":
            return f"rewards of turns count {self.weight:g} times in right episodes and not in others"
        gate = "" if self.threshold is None else f" where the outcome is above {self.threshold:g}"
        return f"rewards of turns count {self.weight:g} times{gate}"

    @override
    def formula(self) -> str:
        gate = {"correct": "[right]·"}.get(
            self.outcome, "" if self.threshold is None else f"[R_O > {self.threshold:g}]·"
        )
        return f"R ← R_O + {self.weight:g}·{gate}Σ_k r_k"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the gate is always open without a threshold, or does not read it."""
        if self.outcome == "correct" and self.threshold != type(self).threshold:
            return ["reward_gate.threshold has no effect: outcome 'correct' asks whether the episode is right"]
        if self.outcome == "rest" and self.threshold is None and self.weight == 1:
            return ["reward_gate has no effect: without a threshold it is always open"]
        return []


@part("reward_transform")
class ToolProductivity(RewardTransform):
    """OTC: multiply the reward by how frugal the episode was with tools (arXiv:2504.14870).

    m calls: the turns before the last. `target` "none" (OTC-PPO): cos(mπ/(2m+c)). `target` "fewest" (OTC-GRPO): n is
    the fewest calls of a right episode of this prompt so far, this group included; 1 for m = n = 0,
    cos(mπ/(2m+c)) for n = 0 < m, sin(mπ/(m+n)) otherwise. While no episode was right the factor is 0.
    """

    target: Literal["fewest", "none"] = "fewest"
    smoothing: Positive = 4.0
    alpha: Positive = 1.0

    def __call__(self, batch: Batch) -> Batch:
        """Return α·r_tool·R."""
        calls_b = (turns_of(batch, self.name).sum(1) - 1).to(batch.dtype)
        factor_b = self.alpha * self.factors(calls_b, None if self.target == "none" else self._fewest(batch, calls_b))
        return batch.replace(reward_b=factor_b * batch.reward_b)

    @override
    def code(self) -> str:
        lines = [
            "calls_b = (turns_there(turn_bt, mask_bt, int(turn_bt.max()) + 1).sum(1) - 1).to(reward_b.dtype)",
            f"factor_b = torch.cos(calls_b * math.pi / (2 * calls_b + {self.smoothing!r}))",
        ]
        if self.target == "fewest":
            lines += [
                'past_b = torch.where(past["fewest_calls"] < 0, torch.inf, past["fewest_calls"])',
                "now_b = torch.where(same_bb & correct_b, calls_b, torch.inf).amin(1)",
                "fewest_b = torch.minimum(now_b, past_b)  # calls of a right episode of this prompt, now or before",
                "n_b = torch.where(fewest_b.isfinite(), fewest_b, 1)",
                "sine_b = torch.sin(calls_b * math.pi / (calls_b + n_b).clamp(min=1))",
                "factor_b = torch.where(n_b == 0, factor_b, sine_b) * fewest_b.isfinite()",
            ]
        return "\n".join([*lines, f"reward_b = {self.alpha!r} * factor_b * reward_b"])

    def factors(self, calls_b: Tensor, fewest_b: Tensor | None) -> Tensor:
        """Return [B] r_tool for m calls if the fewest known are n (inf: none known); without `fewest_b` that of
        OTC-PPO.
        """
        cosine_b = torch.cos(calls_b * math.pi / (2 * calls_b + self.smoothing))
        if fewest_b is None:
            return cosine_b
        known_b = fewest_b.isfinite()
        n_b = torch.where(known_b, fewest_b, 1)
        sine_b = torch.sin(calls_b * math.pi / (calls_b + n_b).clamp(min=1))
        return torch.where(n_b == 0, cosine_b, sine_b) * known_b

    def _fewest(self, batch: Batch, calls_b: Tensor) -> Tensor:
        """Return [B] the fewest calls of a right completion of the prompt, now or before; inf if there is none."""
        right_b, past_b = counted_right(batch), batch.need("past.fewest_calls", self.name).to(batch.dtype)
        now_b = levels.extreme(calls_b, batch.group_b, right_b, largest=False)
        now_b = torch.where(levels.count(batch.group_b, right_b) > 0, now_b, torch.inf)
        return torch.minimum(now_b, torch.where(past_b < 0, torch.inf, past_b))

    @override
    def needs(self) -> tuple[str, ...]:
        return ("turn_bt",) if self.target == "none" else ("turn_bt", "past.fewest_calls")

    @override
    def words(self) -> str:
        if self.target == "none":
            return "multiply the reward by a cosine that falls with the number of turns before the last"
        return (
            "multiply the reward by a sine that is largest at the fewest turns before the last with which the prompt "
            "was solved so far"
        )

    @override
    def formula(self) -> str:
        cosine = f"cos(mπ/(2m+{self.smoothing:g}))"
        tool = cosine if self.target == "none" else f"sin(mπ/(m+n)), for n = 0: {cosine}"
        return f"R ← {self.alpha:g}·r_tool·R,  r_tool = {tool}"


@part("reward_transform")
class TryAgain(RewardTransform):
    """UFO: a success counts less the later it comes, and repeating an answer costs (arXiv:2507.14295).

    R ← R·decay^t - λ(1 - E/T): t is the last turn, from 0, T the valid turns, E the different actions among them.
    """

    decay: Annotated[float, Field(gt=0, le=1)] = 0.5
    repetition: NonNegative = 0.5

    def __call__(self, batch: Batch) -> Batch:
        """Return R·decay^t - λ(1 - E/T)."""
        there_bs = turns_of(batch, self.name)
        late_b = self.decay ** (there_bs.sum(1) - 1).to(batch.dtype)
        penalty_b = self.repetition * self._repeated(batch, there_bs) if self.repetition else 0
        return batch.replace(reward_b=batch.reward_b * late_b - penalty_b)

    @override
    def code(self) -> str:
        lines = [
            "turns = int(turn_bt.max()) + 1",
            "there_bs = turns_there(turn_bt, mask_bt, turns)",
            f"reward_b = reward_b * {self.decay!r} ** (there_bs.sum(1) - 1).to(reward_b.dtype)",
        ]
        if self.repetition:
            lines += [
                "valid_bs = there_bs & valid_bs[:, :turns]",
                "action_bs = torch.where(valid_bs, numbered_actions(token_bt, turn_bt, mask_bt, turns), -1)",
                "earlier_ss = torch.ones(turns, turns, dtype=torch.bool).tril(-1)",
                "again_bs = ((action_bs[:, :, None] == action_bs[:, None]) & earlier_ss).any(2) & valid_bs",
                "share_b = again_bs.sum(1) / valid_bs.sum(1).clamp(min=1).to(reward_b.dtype)",
                f"reward_b = reward_b - {self.repetition!r} * share_b",
            ]
        return "\n".join(lines)

    def _repeated(self, batch: Batch, there_bs: Tensor) -> Tensor:
        """Return [B] 1 - E/T, 0 without a valid turn."""
        valid_bs = there_bs & batch.need("valid_bs", self.name)[:, : there_bs.shape[1]]
        action_bs = torch.where(valid_bs, same_actions(batch, there_bs, self.name), -1)
        turns = there_bs.shape[1]
        earlier_ss = torch.ones(turns, turns, dtype=torch.bool, device=there_bs.device).tril(-1)
        repeated_bs = ((action_bs[:, :, None] == action_bs[:, None]) & earlier_ss).any(2) & valid_bs
        return repeated_bs.sum(1) / valid_bs.sum(1).clamp(min=1).to(batch.dtype)

    @override
    def needs(self) -> tuple[str, ...]:
        return ("turn_bt", "token_bt", "valid_bs") if self.repetition else ("turn_bt",)

    @override
    def words(self) -> str:
        again = f", minus {self.repetition:g} times the share of valid actions that repeat an earlier one"
        return f"multiply the reward by {self.decay:g} for every turn before the last{again if self.repetition else ''}"

    @override
    def formula(self) -> str:
        again = f" - {self.repetition:g}·(1 - E/T)" if self.repetition else ""
        return f"R ← R·{self.decay:g}^t{again}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if `decay` is 1 and `repetition` 0."""
        if self.decay == 1 and self.repetition == 0:
            return ["try_again has no effect: decay is 1 and repetition 0"]
        return []
