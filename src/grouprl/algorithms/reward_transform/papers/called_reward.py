"""Rewards of agents that other agents call (M-GRPO)."""

from __future__ import annotations

import torch

from grouprl.algorithms.advantage.per_agent import one_agent
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.algorithms.turn_returns import has_turn
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("reward_transform")
class CalledReward(RewardTransform):
    """M-GRPO: called agents earn by how the episode ended for the first agent (arXiv:2511.13288, released code).

    The reward of another agent's row becomes 0 if one of its turns was invalid, else `right` where the first agent of
    its episode was right and `wrong` where not. The first agent keeps its own reward. If the episode has no row of the
    first agent, the row's own correctness counts.
    """

    right: float = 1.0
    wrong: float = 0.1
    says = (
        "agents that were called earn {right:g} where the first agent ends right and {wrong:g} where not, "
        "nothing after an invalid turn"
    )
    equation = "R_called ← valid · ({right:g} if the first agent is right else {wrong:g})"
    reads = ("agent_b", "correct_b", "valid_bs", "turn_bt", "keys.episode")
    plain = (
        'first_b, same_episode_bb = agent_b == 0, keys["episode"][:, None] == keys["episode"]\n'
        "known_b = (same_episode_bb & first_b).any(1)\n"
        "won_b = torch.where(known_b, (same_episode_bb & first_b & correct_b).any(1), correct_b)\n"
        "well_b = (valid_bs | ~turns_there(turn_bt, mask_bt, valid_bs.shape[1])).all(1)\n"
        "earned_b = well_b * torch.full_like(reward_b, {wrong!r}).masked_fill(won_b, {right!r})\n"
        "reward_b = torch.where(first_b, reward_b, earned_b)"
    )

    def __call__(self, batch: Batch) -> Batch:
        """Set the rewards of the agents that were called."""
        agent_b, correct_b = batch.need("agent_b", self.name), batch.need("correct_b", self.name)
        episode_b, valid_bs = batch.need("keys.episode", self.name), batch.need("valid_bs", self.name)
        first_b = agent_b == 0
        known_b = levels.total(first_b.to(batch.dtype), episode_b) > 0
        won_b = levels.total((first_b & correct_b).to(batch.dtype), episode_b) > 0
        won_b = torch.where(known_b, won_b, correct_b)
        well_b = (valid_bs | ~has_turn(batch, valid_bs.shape[1], self.name)).all(1)
        right_b, wrong_b = (torch.full_like(batch.reward_b, x) for x in (self.right, self.wrong))
        earned_b = well_b * torch.where(won_b, right_b, wrong_b)
        return batch.replace(reward_b=torch.where(first_b, batch.reward_b, earned_b))

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if the task has one agent."""
        return one_agent(self.name, run)
