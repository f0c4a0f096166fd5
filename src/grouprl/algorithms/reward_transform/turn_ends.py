"""Rewards of turns that are paid where the turns end."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.lines import SPLIT
from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.algorithms.turn_returns import has_turn, last_tokens, on_tokens, turn_rewards
from grouprl.core.batch import Batch


def at_turn_ends(reward_bs: Tensor, batch: Batch, there_bs: Tensor, reader: str) -> Tensor:
    """Return [B,T] the reward of each turn on its last token."""
    return on_tokens(reward_bs, batch, reader) * last_tokens(batch, there_bs, reader)


@part("reward_transform")
class RewardAtTurnEnd(RewardTransform):
    """Pay the reward of each turn on the turn's last token, not at the end of the sequence.

    Only credit along the tokens (returns to go, a critic) sees a difference.
    """

    says = "pay the reward of each turn on its last token"
    equation = "r_t ← r_t + r_k at the last token of turn k,  R ← R - Σ_k r_k"
    reads = ("turn_bt", "turn_reward_bs")

    def __call__(self, batch: Batch) -> Batch:
        """Return r_t += r_k at the last token of turn k."""
        there_bs = has_turn(batch, batch.need("turn_reward_bs", self.name).shape[1], self.name)
        reward_bs, _ = turn_rewards(batch, there_bs, self.name)
        paid_bt = at_turn_ends(reward_bs, batch, there_bs, self.name)
        before_bt = batch.token_reward_bt
        token_bt = paid_bt if before_bt is None else before_bt + paid_bt
        return batch.replace(reward_b=batch.reward_b - reward_bs.sum(1), token_reward_bt=token_bt)

    @override
    def code(self) -> str:
        return "\n".join(
            [
                *SPLIT,
                "ends_bt = ends_of_turns(turn_bt, mask_bt, there_bs.shape[1])",
                "token_reward_bt = token_reward_bt + to_tokens(paid_bs, turn_bt, mask_bt) * ends_bt",
                "reward_b = reward_b - paid_bs.sum(1)",
            ]
        )
