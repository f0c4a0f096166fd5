"""An advantage of the outcome and one of the actions, for agents that play in turns."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import GroupAdvantage
from grouprl.algorithms.lines import compared
from grouprl.algorithms.part import part
from grouprl.algorithms.turn_returns import has_turn, on_tokens, turn_rewards
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.levels import Alone, Scale
from grouprl.core.numbers import NonNegative


@part("advantage")
class OutcomeAndActions(GroupAdvantage):
    """HRPO: the outcome relative to its group, plus the reward of each action as it is (MasHost, arXiv:2506.08507).

    A_t = A_O + `weight`·r(turn of t). A_O is the episode's reward without the rewards of its turns, relative to its
    group; r has no baseline, so a group whose outcomes are all equal still learns what actions cost.
    """

    weight: NonNegative = 1.0
    scale: Scale = "sample_std"
    eps: NonNegative = 1e-6
    alone: Alone = "zero"
    says = "outcome relative to its group, plus {weight:g} times each turn's own reward, compared with nothing"
    reads = ("turn_bt", "turn_reward_bs")

    def __call__(self, batch: Batch) -> Tensor:
        """Return A_O + weight · r of each token's turn, [B,T]."""
        there_bs = has_turn(batch, batch.need("turn_reward_bs", self.name).shape[1], self.name)
        reward_bs, outcome_b = turn_rewards(batch, there_bs, self.name)
        adv_b = levels.relative(
            outcome_b,
            batch.group_b,
            scale=self.scale,
            eps=self.eps,
            alone=self.alone,
            weight_n=batch.stats_b.to(batch.dtype),
        )
        return batch.broadcast(adv_b) + self.weight * on_tokens(reward_bs, batch, self.name)

    @override
    def code(self) -> str:
        if self.alone != "zero" or self.scale == "leave_one_out_std":
            return ""
        return (
            "there_bs = turns_there(turn_bt, mask_bt, turn_reward_bs.shape[1])\n"
            "action_bs, outcome_b = split_rewards(reward_b, turn_reward_bs, there_bs)\n"
            f"adv_b = {compared('outcome_b', 'same_bb', self.scale, self.eps)} * counts_b\n"
            f"adv_bt = adv_b[:, None] * mask_bt + {self.weight!r} * to_tokens(action_bs, turn_bt, mask_bt)"
        )

    @override
    def formula(self) -> str:
        spread = "" if self.scale == "none" else f" / (std_g R_O + {self.eps:g})"
        return f"A_t = (R_O - mean_g R_O){spread} + {self.weight:g}·r(turn of t),  R_O = R - Σ r"
