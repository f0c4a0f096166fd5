"""Credit for single turns of an answer beside its outcome."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from grouprl import levels
from grouprl.batch import Batch
from grouprl.errors import InputError
from grouprl.levels import Scale
from grouprl.parts.advantage import Advantage, Relative
from grouprl.parts.part import RunFacts, part


@part("advantage")
class TurnAndOutcome(Advantage):
    """MT-GRPO: the first turn earns its own reward besides the outcome's, each judged in the group (arXiv:2505.11821).

    A_O and A_T are the outcome (what the answer earned besides its turns' rewards) and the first turn's reward
    `turn_reward_bs[:, 0]`, both minus their group's mean over its sample standard deviation + eps. Tokens of the first
    turn (before the first tool result) get A_O + `turn_weight`·A_T, later ones A_O. A row without a second turn called
    no tool: all its tokens get the advantage of the sum of both rewards.
    """

    turn_weight: Annotated[float, Field(ge=0)] = 1.0
    eps: Annotated[float, Field(ge=0)] = 1e-4

    def __call__(self, batch: Batch) -> Tensor:
        """Return advantages [B,T] by turn."""
        turn_bt, reward_bs = batch.need("turn_bt", self.name), batch.need("turn_reward_bs", self.name)
        there_bs = has_turn(batch, reward_bs.shape[1], self.name)
        outcome_b = batch.total_reward_b - torch.where(there_bs, reward_bs, 0).sum(1)
        first_b = reward_bs[:, 0]
        outcome_adv_b, turn_adv_b, sum_adv_b = (
            self._judge(x, batch) for x in (outcome_b, first_b, outcome_b + first_b)
        )
        called_b = (torch.where(batch.mask_bt, turn_bt, 0) > 0).any(1)
        early_bt = turn_bt == 0
        by_turn_bt = outcome_adv_b[:, None] + self.turn_weight * turn_adv_b[:, None] * early_bt
        return torch.where(called_b[:, None], by_turn_bt, sum_adv_b[:, None]) * batch.mask_bt

    def _judge(self, value_b: Tensor, batch: Batch) -> Tensor:
        weight_b = batch.stats_b.to(batch.dtype)
        return levels.relative(value_b, batch.group_b, scale="sample_std", eps=self.eps, weight_n=weight_b)

    def needs(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("turn_bt", "turn_reward_bs")

    def words(self) -> str:
        """Describe."""
        return (
            f"outcome relative to its group; tokens of the first turn add {self.turn_weight:g} times the turn's own "
            "reward relative to its group; answers that called no tool are judged by the sum"
        )

    def formula(self) -> str:
        """Return the formula."""
        return f"A_t = A_O + {self.turn_weight:g}·A_T in the first turn, A_O after it"


def has_turn(batch: Batch, turns: int, reader: str) -> Tensor:
    """[B,S] bool: the turns in which a row acted; InputError where it has one of `turns` or more."""
    turn_bt = torch.where(batch.mask_bt, batch.need("turn_bt", reader), -1)
    if int(turn_bt.max()) >= turns:
        raise InputError(
            f"turn_bt has turn {int(turn_bt.max())}, the fields of turns only {turns}", "each turn has a reward"
        )
    there_bs = torch.zeros(len(turn_bt), turns + 1, dtype=torch.bool, device=turn_bt.device)
    return there_bs.scatter(1, turn_bt + 1, True)[:, 1:]


def turn_returns(batch: Batch, there_bs: Tensor, gamma: float, reader: str) -> Tensor:
    """[B,S] discounted rewards from each turn on, G_k = Σ_{l≥k} γ^{l-k} r_l; 0 where a row has no such turn.

    What a sequence earns besides the rewards of its turns is earned in its last turn.
    """
    reward_bs = torch.where(there_bs, batch.need("turn_reward_bs", reader).to(batch.dtype), 0)
    position = torch.arange(there_bs.shape[1], device=there_bs.device)
    last_b = torch.where(there_bs, position, -1).amax(1, keepdim=True)
    rest_b = batch.total_reward_b - reward_bs.sum(1)
    reward_bs = reward_bs + rest_b[:, None] * (position == last_b)
    carry_b, returns = torch.zeros_like(batch.reward_b), []
    for k in reversed(range(there_bs.shape[1])):
        carry_b = torch.where(there_bs[:, k], reward_bs[:, k] + gamma * carry_b, carry_b)
        returns.append(carry_b)
    return torch.where(there_bs, torch.stack(returns[::-1], 1), 0)


@part("advantage")
class AnchorState(Advantage):
    """GiGPO: an episode against its group, and each turn against all turns from the same state (arXiv:2505.10978).

    A = A_E + `omega`·A_S. A_E is the episode's reward relative to its group; `over` "turns" lets every episode enter
    the group's mean and spread once per turn, as in the authors' code. A_S is the discounted return from the turn on,
    relative to all turns of the group's episodes that began in the same state; a state that occurs once, or has no key
    (-1), gets 0.
    """

    omega: Annotated[float, Field(ge=0)] = 1.0
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.95
    scale: Scale = "none"
    eps: Annotated[float, Field(ge=0)] = 1e-6
    over: Literal["episodes", "turns"] = "episodes"

    def __call__(self, batch: Batch) -> Tensor:
        """Return A_E + omega·A_S of each token's turn, [B,T]."""
        state_bs = batch.need("state_bs", self.name)
        there_bs = has_turn(batch, state_bs.shape[1], self.name)
        episode_b = self._episodes(batch, there_bs)
        step_bs = self._steps(batch, there_bs, state_bs)
        turn_bt = torch.where(batch.mask_bt, batch.need("turn_bt", self.name), 0).clamp(min=0)
        return (episode_b[:, None] + self.omega * step_bs.gather(1, turn_bt)) * batch.mask_bt

    def _episodes(self, batch: Batch, there_bs: Tensor) -> Tensor:
        weight_b = batch.stats_b.to(batch.dtype)
        if self.over == "turns":
            weight_b = weight_b * there_bs.sum(1)
        return levels.relative(batch.total_reward_b, batch.group_b, scale=self.scale, eps=self.eps, weight_n=weight_b)

    def _steps(self, batch: Batch, there_bs: Tensor, state_bs: Tensor) -> Tensor:
        """[B,S] A_S."""
        return_bs = turn_returns(batch, there_bs, self.gamma, self.name)
        known_bs = there_bs & (state_bs >= 0) & batch.stats_b[:, None]
        place_n = levels.cross(batch.group_b[:, None].expand_as(state_bs).flatten(), state_bs.flatten())
        weight_n = known_bs.flatten().to(batch.dtype)
        step_n = levels.relative(return_bs.flatten(), place_n, scale=self.scale, eps=self.eps, weight_n=weight_n)
        return step_n.view_as(return_bs)

    def needs(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("turn_bt", "turn_reward_bs", "state_bs")

    def words(self) -> str:
        """Describe."""
        spread = "" if self.scale == "none" else f" over the {self.scale.replace('_', ' ')} + {self.eps:g}"
        weigh = ", each episode counted once per turn" if self.over == "turns" else ""
        return (
            f"episode reward minus its group's mean{spread}{weigh}; each turn adds {self.omega:g} times its return "
            f"(discount {self.gamma:g}) relative to the group's turns from the same state"
        )

    def formula(self) -> str:
        """Return the formula."""
        spread = "" if self.scale == "none" else f" / (std + {self.eps:g})"
        return (
            f"A_t = A_E + {self.omega:g}·A_S(turn of t),  A_E = (R - mean_g R){spread},  "
            f"A_S = (G_k - mean_{{g,state}} G){spread},  G_k = Σ_{{l≥k}} {self.gamma:g}^(l-k) r_l"
        )

    def refuse(self, run: RunFacts) -> list[str]:
        """A group baseline needs a group."""
        return Relative("group").refuse(run)

    def idle(self, run: RunFacts) -> list[str]:
        """Without a weight the discount decides nothing."""
        if self.omega == 0 and self.gamma != type(self).gamma:
            return ["anchor_state.gamma has no effect: omega is 0"]
        return []
