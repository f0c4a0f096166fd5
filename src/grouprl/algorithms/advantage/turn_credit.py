"""Credit for single turns of a completion, in addition to its outcome."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import GroupAdvantage
from grouprl.algorithms.lines import compared
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.turn_returns import accumulated, has_turn, last_turn, on_tokens, turn_rewards, with_the_rest
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.levels import Scale
from grouprl.core.numbers import NonNegative

Key = Literal["state", "turn"]
"""Turns that are compared: those from the same state, or those of the same number."""
Discount = Annotated[float, Field(ge=0, le=1)]


@part("advantage")
class TurnRelative(GroupAdvantage):
    """An episode against its group, and each turn against the group's turns from the same state, or of its number.

    A = `episode`·A_E + `omega`·A_S. A_E is the episode's reward relative to its group; `over` "turns" lets every
    episode enter the group's mean and spread once per turn. A_S is the discounted return from the turn on, relative to
    all turns with the same `key`: "state", the state in which they began (GiGPO, arXiv:2505.10978; a state that occurs
    once, or has no key (-1), gets 0), or "turn", their number (UI-S1, arXiv:2509.11543). With `reset` nothing flows
    back into or across an invalid turn. `absent` "zero" lets an episode without that turn count there with a return of
    0 (Rank-GRPO, arXiv:2510.20150: a list without that rank).
    """

    key: Key = "state"
    episode: NonNegative = 1.0
    omega: NonNegative = 1.0
    gamma: Discount = 0.95
    scale: Scale = "none"
    eps: NonNegative = 1e-6
    over: Literal["episodes", "turns"] = "episodes"
    reset: bool = False
    absent: Literal["skip", "zero"] = "skip"

    def __post_init__(self) -> None:
        """Raise InputError if a missing turn is to count as 0 among turns from the same state: it has no state."""
        if self.key == "state" and self.absent == "zero":
            raise InputError(
                "turn_relative: absent 'zero' with key 'state'",
                "a turn that an episode does not have begins in no state",
                "Set key: turn, or absent: skip",
            )

    def __call__(self, batch: Batch) -> Tensor:
        """Return episode·A_E + omega·A_S of each token's turn, [B,T]."""
        there_bs = has_turn(batch, self._key(batch).shape[1], self.name)
        episode_b, step_bs = self._episodes(batch, there_bs), self._steps(batch, there_bs)
        return batch.broadcast(self.episode * episode_b) + self.omega * on_tokens(step_bs, batch, self.name)

    @override
    def code(self) -> str:
        if self.scale == "leave_one_out_std":
            return ""
        turns = "turn_reward_bs.shape[1]"
        key = "state_bs" if self.key == "state" else f"torch.arange({turns}).expand_as(turn_reward_bs)"
        known = "there_bs & (key_bs >= 0)" if self.absent == "skip" else "key_bs >= 0"
        episode = "same_bb * there_bs.sum(1)" if self.over == "turns" else "same_bb"
        lines = [
            f"key_bs, there_bs = {key}, turns_there(turn_bt, mask_bt, {turns})",
            "paid_bs, rest_b = split_rewards(reward_b, turn_reward_bs, there_bs)",
            "paid_bs = paid_bs + rest_b[:, None] * last_turn(there_bs)",
            f"return_bs = accumulated(paid_bs, there_bs, {self.gamma!r}{', valid_bs' if self.reset else ''})",
            f"known_n = (({known}) & counts_b[:, None]).flatten()",
            "key_n, group_n = key_bs.flatten(), group_b.repeat_interleave(key_bs.shape[1])",
            "like_nn = (group_n[:, None] == group_n) & (key_n[:, None] == key_n) & known_n  # turns that are compared",
            f"step_n = {compared('return_bs.flatten()', 'like_nn', self.scale, self.eps)} * known_n",
            f"adv_bt = {self.omega!r} * to_tokens(step_n.view_as(return_bs), turn_bt, mask_bt)",
        ]
        if self.episode:
            lines += [
                f"episode_b = {compared('reward_b', episode, self.scale, self.eps)} * counts_b",
                f"adv_bt = adv_bt + {self.episode!r} * episode_b[:, None] * mask_bt",
            ]
        return "\n".join(lines)

    def _key(self, batch: Batch) -> Tensor:
        """Return [B,S] the key by which each turn is compared, -1 where it is not compared."""
        if self.key == "state":
            return batch.need("state_bs", self.name)
        reward_bs = batch.need("turn_reward_bs", self.name)
        return torch.arange(reward_bs.shape[1], device=reward_bs.device).expand_as(reward_bs)

    def _episodes(self, batch: Batch, there_bs: Tensor) -> Tensor:
        weight_b = batch.stats_b.to(batch.dtype)
        if self.over == "turns":
            weight_b = weight_b * there_bs.sum(1)
        return levels.relative(batch.total_reward_b, batch.group_b, scale=self.scale, eps=self.eps, weight_n=weight_b)

    def _steps(self, batch: Batch, there_bs: Tensor) -> Tensor:
        """Return [B,S] A_S."""
        valid_bs = batch.need("valid_bs", self.name) if self.reset else None
        reward_bs = with_the_rest(*turn_rewards(batch, there_bs, self.name), there_bs)
        return_bs = accumulated(reward_bs, there_bs, self.gamma, valid_bs)
        key_bs = self._key(batch)
        known_bs = (there_bs if self.absent == "skip" else torch.ones_like(there_bs)) & (key_bs >= 0)
        place_n = levels.cross(batch.group_b[:, None].expand_as(key_bs).flatten(), key_bs.flatten())
        weight_n = (known_bs & batch.stats_b[:, None]).flatten().to(batch.dtype)
        step_n = levels.relative(return_bs.flatten(), place_n, scale=self.scale, eps=self.eps, weight_n=weight_n)
        return step_n.view_as(return_bs)

    @override
    def needs(self) -> tuple[str, ...]:
        keyed = ("state_bs",) if self.key == "state" else ()
        return ("turn_bt", "turn_reward_bs", *keyed, *(("valid_bs",) if self.reset else ()))

    @override
    def words(self) -> str:
        spread = "" if self.scale == "none" else f" over the {self.scale.replace('_', ' ')} + {self.eps:g}"
        counting = ", each episode counted once per turn" if self.over == "turns" else ""
        whole = f"{self.episode:g} times the episode's reward minus its group's mean{spread}{counting}; "
        like = "from the same state" if self.key == "state" else "of the same number"
        cut = ", which an invalid turn interrupts," if self.reset else ""
        gone = "; an episode without it counts as 0" if self.absent == "zero" else ""
        return (
            f"{whole if self.episode else ''}each turn: {self.omega:g} times its return (discount {self.gamma:g}){cut} "
            f"relative to the group's turns {like}{spread}{gone}"
        )

    def formula(self) -> str:
        """Return the formula."""
        spread = "" if self.scale == "none" else f" / (std + {self.eps:g})"
        cut = ", cut at invalid turns" if self.reset else ""
        whole = f"{self.episode:g}·A_E + " if self.episode else ""
        defined = f"A_E = (R - mean_g R){spread},  " if self.episode else ""
        return (
            f"A_t = {whole}{self.omega:g}·A_S(turn of t),  {defined}"
            f"A_S = (G_k - mean_{{g,{self.key}}} G){spread},  G_k = Σ_{{l≥k}} {self.gamma:g}^(l-k) r_l{cut}"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the discount has no effect if `omega` is 0."""
        if self.omega == 0 and self.gamma != type(self).gamma:
            return ["turn_relative.gamma has no effect: omega is 0"]
        return []


@part("advantage")
class NormalisedTurns(GroupAdvantage):
    """IGPO: rewards of turns are first made comparable in the group, then accumulated (arXiv:2510.14967).

    z is the reward of a turn relative to all turns of the group: `together` all of them, or apart the rewards of turns
    before the last and those of last turns. A_k = Σ_{l≥k} γ^{l-k} z_l. The rest of an episode's reward is added to its
    last turn.
    """

    together: bool = False
    gamma: Discount = 1.0
    scale: Scale = "sample_std"
    eps: NonNegative = 1e-6
    reads = ("turn_bt", "turn_reward_bs")

    def __call__(self, batch: Batch) -> Tensor:
        """Return Σ γ^{l-k} z_l of each token's turn, [B,T]."""
        there_bs = has_turn(batch, batch.need("turn_reward_bs", self.name).shape[1], self.name)
        reward_bs = with_the_rest(*turn_rewards(batch, there_bs, self.name), there_bs)
        normalised_bs = torch.where(there_bs, self._normalised(reward_bs, there_bs, batch), 0)
        return on_tokens(accumulated(normalised_bs, there_bs, self.gamma), batch, self.name)

    @override
    def code(self) -> str:
        if self.scale == "leave_one_out_std":
            return ""
        ends = [] if self.together else ["end_n = last_turn(there_bs).flatten()  # outcomes are compared apart"]
        alike = "" if self.together else " & (end_n[:, None] == end_n)"
        return "\n".join(
            [
                "there_bs = turns_there(turn_bt, mask_bt, turn_reward_bs.shape[1])",
                "paid_bs, rest_b = split_rewards(reward_b, turn_reward_bs, there_bs)",
                "paid_bs = paid_bs + rest_b[:, None] * last_turn(there_bs)",
                *ends,
                "known_n = (there_bs & counts_b[:, None]).flatten()",
                "group_n = group_b.repeat_interleave(there_bs.shape[1])",
                f"like_nn = (group_n[:, None] == group_n){alike} & known_n",
                f"turn_n = {compared('paid_bs.flatten()', 'like_nn', self.scale, self.eps)} * known_n",
                f"return_bs = accumulated(turn_n.view_as(paid_bs), there_bs, {self.gamma!r})",
                "adv_bt = to_tokens(return_bs, turn_bt, mask_bt)",
            ]
        )

    def _normalised(self, reward_bs: Tensor, there_bs: Tensor, batch: Batch) -> Tensor:
        """Return [B,S] z of each turn."""
        ends_bs = torch.zeros_like(there_bs) if self.together else last_turn(there_bs)
        id_n = levels.cross(batch.group_b[:, None].expand_as(reward_bs).flatten(), ends_bs.flatten().long())
        weight_n = (there_bs & batch.stats_b[:, None]).flatten().to(batch.dtype)
        flat_n = levels.relative(reward_bs.flatten(), id_n, scale=self.scale, eps=self.eps, weight_n=weight_n)
        return flat_n.view_as(reward_bs)

    @override
    def words(self) -> str:
        apart = "" if self.together else ", last turns and others apart"
        spread = "" if self.scale == "none" else f", over the {self.scale.replace('_', ' ')} + {self.eps:g}"
        return (
            f"each turn's reward minus the mean over the turns of its group{spread}{apart}; "
            f"a turn gets what it and later turns have (discount {self.gamma:g})"
        )

    def formula(self) -> str:
        """Return the formula."""
        spread = "" if self.scale == "none" else f" / (std_g r + {self.eps:g})"
        apart = "" if self.together else ", last turns apart"
        return f"A_k = Σ_{{l≥k}} {self.gamma:g}^(l-k) z_l,  z = (r - mean_g r){spread}{apart}"
