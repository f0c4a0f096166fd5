"""Rewards of turns, before advantages are computed: information gained, ranks, progress, and where rewards are paid.

The reward of a sequence includes those of its turns, so a change of theirs changes it by as much.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.lines import PAY, SPLIT
from grouprl.algorithms.outcome import right
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.algorithms.reward_transform.turn_ends import at_turn_ends
from grouprl.algorithms.turn_returns import (
    has_turn,
    last_turn,
    next_turn,
    turn_means,
    turn_rewards,
)
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


def with_turn_rewards(batch: Batch, reward_bs: Tensor, there_bs: Tensor, reader: str) -> Batch:
    """Return the batch with other rewards of turns; the rest of a sequence's reward stays."""
    before_bs, _ = turn_rewards(batch, there_bs, reader)
    more_b = (reward_bs - before_bs).sum(1)
    return batch.replace(turn_reward_bs=reward_bs, reward_b=batch.reward_b + more_b)


@part("reward_transform")
class InformationGain(RewardTransform):
    """Reward every turn but the last for how much likelier it made the correct answer (IGPO, arXiv:2510.14967).

    `stats.answer` is the mean log-prob of the correct answer's tokens, if it were given at the beginning of the token's
    turn. r_k grows by w(p_{k+1} - p_k), p = exp of that, or by the difference of the logarithms with `measure`
    "log_probability". The last turn adds nothing, because no turn follows.
    """

    weight: NonNegative = 1.0
    measure: Literal["probability", "log_probability"] = "probability"
    reads = ("turn_bt", "turn_reward_bs", "stats.answer")

    def __call__(self, batch: Batch) -> Batch:
        """Return r_k + w(p_{k+1} - p_k)."""
        there_bs = has_turn(batch, batch.need("turn_reward_bs", self.name).shape[1], self.name)
        belief_bs = turn_means(batch.need("stats.answer", self.name), batch.mask_bt, batch, there_bs, self.name)
        if self.measure == "probability":
            belief_bs = belief_bs.exp()
        after_bs = next_turn(belief_bs, there_bs, torch.nan)
        gain_bs = torch.where(there_bs & ~after_bs.isnan(), after_bs - belief_bs, 0)
        reward_bs, _ = turn_rewards(batch, there_bs, self.name)
        return with_turn_rewards(batch, reward_bs + self.weight * gain_bs, there_bs, self.name)

    @override
    def code(self) -> str:
        exp = ".exp()" if self.measure == "probability" else ""
        return "\n".join(
            [
                *SPLIT,
                f'belief_bs = mean_of_turns(stats["answer"], mask_bt, turn_bt, there_bs.shape[1]){exp}',
                "after_bs = next_turn(belief_bs, there_bs, torch.nan)",
                "gain_bs = torch.where(there_bs & ~after_bs.isnan(), after_bs - belief_bs, 0)",
                f"turn_reward_bs = paid_bs + {self.weight!r} * gain_bs",
                PAY,
            ]
        )

    @override
    def words(self) -> str:
        what = "probability" if self.measure == "probability" else "log-prob"
        return f"pay each turn but the last {self.weight:g} times what it adds to the {what} of the correct answer"

    @override
    def formula(self) -> str:
        p = "p" if self.measure == "probability" else "log p"
        return f"r_k ← r_k + {self.weight:g}·({p}_{{k+1}} - {p}_k),  p_k = exp(mean_j log π(a_j | before turn k))"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if its weight is 0 or episodes have one turn."""
        if self.weight == 0:
            return ["information_gain has no effect: its weight is 0"]
        return (
            [] if run.environment else ["information_gain has no effect: a completion without turns has only its last"]
        )


@part("reward_transform")
class RankDiscount(RewardTransform):
    """Discount the hit of turn k as discounted cumulative gain does: r_k/log2(k + 1), k from 1 (arXiv:2510.20150).

    A turn is one item of a ranked list, its reward whether it is a hit.
    """

    says = "divide the reward of turn k by log2(k + 1), as discounted cumulative gain does with ranks"
    equation = "r_k ← r_k / log2(k + 1),  k from 1"
    reads = ("turn_bt", "turn_reward_bs")

    def __call__(self, batch: Batch) -> Batch:
        """Return r_k/log2(k+1)."""
        there_bs = has_turn(batch, batch.need("turn_reward_bs", self.name).shape[1], self.name)
        reward_bs, _ = turn_rewards(batch, there_bs, self.name)
        rank_s = torch.arange(reward_bs.shape[1], device=reward_bs.device, dtype=reward_bs.dtype) + 1
        return with_turn_rewards(batch, reward_bs / torch.log2(rank_s + 1), there_bs, self.name)

    @override
    def code(self) -> str:
        return "\n".join(
            [
                *SPLIT,
                "rank_s = torch.arange(paid_bs.shape[1]).to(reward_b.dtype) + 1",
                "turn_reward_bs = paid_bs / torch.log2(rank_s + 1)",
                PAY,
            ]
        )


@part("reward_transform")
class ProgressReward(RewardTransform):
    """Replace all rewards by how much each turn contributed, and whether its action was valid (arXiv:2505.20732).

    r_k = α c_k + β g_k: c is `stats.progress`, a model's estimate whose sum over turns is near the outcome, g whether
    the action was valid. It is paid on the last token of turn k.
    """

    alpha: NonNegative = 1.0
    beta: NonNegative = 0.5
    says = (
        "turns earn {alpha:g} times their estimated share of the outcome and {beta:g} for a valid action, and "
        "nothing else counts"
    )
    equation = "r_k ← {alpha:g}·c_k + {beta:g}·[valid],  R ← Σ_k r_k"
    reads = ("turn_bt", "valid_bs", "stats.progress")
    plain = (
        "there_bs = turns_there(turn_bt, mask_bt, valid_bs.shape[1])\n"
        'progress_bs = mean_of_turns(stats["progress"], mask_bt, turn_bt, valid_bs.shape[1])\n'
        "turn_reward_bs = torch.where(there_bs, {alpha!r} * progress_bs + {beta!r} * valid_bs, 0)\n"
        "ends_bt = ends_of_turns(turn_bt, mask_bt, valid_bs.shape[1])\n"
        "token_reward_bt = to_tokens(turn_reward_bs, turn_bt, mask_bt) * ends_bt\n"
        "reward_b = torch.zeros_like(reward_b)"
    )

    def __call__(self, batch: Batch) -> Batch:
        """Return r_k = α c_k + β g_k."""
        valid_bs = batch.need("valid_bs", self.name)
        there_bs = has_turn(batch, valid_bs.shape[1], self.name)
        progress_bs = turn_means(batch.need("stats.progress", self.name), batch.mask_bt, batch, there_bs, self.name)
        reward_bs = torch.where(there_bs, self.alpha * progress_bs + self.beta * valid_bs, 0)
        paid_bt = at_turn_ends(reward_bs, batch, there_bs, self.name)
        nothing_b = torch.zeros_like(batch.reward_b)
        return batch.replace(turn_reward_bs=reward_bs, reward_b=nothing_b, token_reward_bt=paid_bt)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that no reward is left if `alpha` and `beta` are 0."""
        return ["progress_reward leaves no reward: alpha and beta are 0"] if self.alpha == self.beta == 0 else []


@part("reward_transform")
class DenseTurns(RewardTransform):
    """Scale the rewards of turns so that an episode's sum to at most 1 (the practitioner's guide, arXiv:2510.01132).

    Those of a right episode are divided by the number of its turns that earned something, others by `most`, the largest
    number of rewards that an episode can earn.
    """

    most: Annotated[int, Field(ge=1)] = 1
    says = "divide the rewards of turns by how many of them there are in a right episode, by {most} in others"
    equation = "r_k ← r_k / #(r > 0) if right, else r_k / {most}"
    reads = ("turn_bt", "turn_reward_bs")

    def __call__(self, batch: Batch) -> Batch:
        """Return r_k/#rewarded or r_k/most."""
        there_bs = has_turn(batch, batch.need("turn_reward_bs", self.name).shape[1], self.name)
        reward_bs, _ = turn_rewards(batch, there_bs, self.name)
        rewarded_b = (reward_bs > 0).sum(1).clamp(min=1)
        divisor_b = torch.where(right(batch), rewarded_b, self.most).to(reward_bs.dtype)
        return with_turn_rewards(batch, reward_bs / divisor_b[:, None], there_bs, self.name)


@part("reward_transform")
class ProactiveRewards(RewardTransform):
    """ProMed: a question earns its information and the diagnosis, the last turn the diagnosis (arXiv:2508.13514).

    Turns before the last get α r_k + β[right], r_k the environment's Shapley information gain of the question, the
    last γ[right]; nothing else counts.
    """

    information: NonNegative = 2.0
    question_right: NonNegative = 1.0
    answered_right: NonNegative = 3.0
    says = (
        "a question earns {information:g} times its information and {question_right:g} if the diagnosis is right, the "
        "last turn {answered_right:g} if it is"
    )
    equation = "r_k ← {information:g}·r_k + {question_right:g}·[right],  r_K ← {answered_right:g}·[right],  R ← Σ_k r_k"
    reads = ("turn_bt", "turn_reward_bs")

    def __call__(self, batch: Batch) -> Batch:
        """Return α r_k + β[right] for questions, γ[right] for the last turn."""
        there_bs = has_turn(batch, batch.need("turn_reward_bs", self.name).shape[1], self.name)
        gain_bs, _ = turn_rewards(batch, there_bs, self.name)
        right_bs = right(batch)[:, None].to(gain_bs.dtype)
        question_bs = self.information * gain_bs + self.question_right * right_bs
        reward_bs = torch.where(last_turn(there_bs), self.answered_right * right_bs, question_bs * there_bs)
        return batch.replace(turn_reward_bs=reward_bs, reward_b=reward_bs.sum(1), token_reward_bt=None)

    @override
    def code(self) -> str:
        return "\n".join(
            [
                *SPLIT,
                "right_b1 = correct_b[:, None].to(reward_b.dtype)",
                f"question_bs = ({self.information!r} * paid_bs + {self.question_right!r} * right_b1) * there_bs",
                f"turn_reward_bs = torch.where(last_turn(there_bs), {self.answered_right!r} * right_b1, question_bs)",
                "reward_b = turn_reward_bs.sum(1)",
            ]
        )
