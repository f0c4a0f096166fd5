"""Advantages of agents with roles that a single paper gives them."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantages.advantage import Advantage, Relative
from grouprl.algorithms.advantages.normalize import Normalize
from grouprl.algorithms.advantages.roles import one_agent
from grouprl.algorithms.advantages.turn_level import has_turn, on_tokens, turn_rewards
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.regularizers.regularize import EntropyBonus
from grouprl.algorithms.rewards.shaping import RewardTransform
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.levels import Alone, Scale
from grouprl.core.numbers import NonNegative, Whole


@part("reward_transform")
class CalledReward(RewardTransform):
    """M-GRPO: who was called earns by how the episode ended for the first agent (arXiv:2511.13288, released code).

    The reward of another agent's row becomes 0 if one of its turns was invalid, else `right` where the first agent of
    its episode was right and `wrong` where not. The first agent keeps its own reward. A row whose episode has no row of
    the first agent goes by its own rightness.
    """

    right: float = 1.0
    wrong: float = 0.1
    says = (
        "agents that were called earn {right:g} where the first agent ends right and {wrong:g} where not, "
        "nothing after an invalid turn"
    )
    equation = "R_called ← valid · ({right:g} if the first agent is right else {wrong:g})"
    reads = ("agent_b", "correct_b", "valid_bs", "turn_bt", "keys.episode")

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
        """There is nobody to call."""
        return one_agent(self.name, run)


@part("advantage")
class OutcomeAndActions(Advantage):
    """HRPO: the outcome relative to its group, plus the reward of each action as it is (MasHost, arXiv:2506.08507).

    A_t = A_O + `weight`·r(turn of t). A_O is what the episode earned besides the rewards of its turns, relative to its
    group; r is not compared with anything, so a group whose outcomes are all equal still learns what actions cost.
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
    def formula(self) -> str:
        spread = "" if self.scale == "none" else f" / (std_g R_O + {self.eps:g})"
        return f"A_t = (R_O - mean_g R_O){spread} + {self.weight:g}·r(turn of t),  R_O = R - Σ r"

    def refuse(self, run: RunFacts) -> list[str]:
        """A group baseline needs a group."""
        return Relative("group").refuse(run)


@part("advantage_transform")
class LateAgent(Normalize):
    """Rows of agent number `agent` have no advantage before step `start`, from 0 (search self-play's warm-up)."""

    agent: Whole = 0
    start: Whole = 5
    says = "agent {agent} learns from step {start} on"
    equation = "A ← 0 for agent {agent} before step {start}"
    reads = ("agent_b", "step")

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Zero the agent's rows in early steps."""
        if batch.need("step", self.name) >= self.start:
            return adv_bt
        return torch.where((batch.need("agent_b", self.name) == self.agent)[:, None], 0, adv_bt)

    def idle(self, run: RunFacts) -> list[str]:
        """Nobody waits, or the agent is not there."""
        if self.start == 0:
            return [f"{self.name} has no effect: start is 0"]
        return [] if self.agent < run.agents else [f"{self.name} has no effect: the task has no agent {self.agent}"]


@part("regularize")
class AgentEntropy(EntropyBonus):
    """-c·H_t on the tokens of agent number `agent` alone (CPMobius's coach)."""

    coef: Annotated[float, Field(ge=0)] = 0.01
    agent: Whole = 1
    says = "an entropy bonus of {coef:g} nats' worth per token of agent {agent}"
    equation = "- {coef:g} · H_t · 1[agent {agent}]"
    reads = ("agent_b",)

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """-c·H_t where the row is the agent's."""
        whole = super().__call__(logp_bt, batch, entropy_bt)
        own_b = batch.need("agent_b", self.name) == self.agent
        return TokenLoss(torch.where(own_b[:, None], whole.loss_bt, 0), whole.metrics)

    def zero_rows(self, batch: Batch) -> Tensor:
        """[B] bool: rows of other agents."""
        return (batch.need("agent_b", self.name) != self.agent) | super().zero_rows(batch)
