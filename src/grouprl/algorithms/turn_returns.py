"""Arithmetic over the turns of each row: which turns exist, what they earn, and spreading their values over tokens.

`there_bs` says which turns a row has; columns of turns are as wide as the field of turns that a part reads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.core.batch import Batch
from grouprl.core.errors import InputError

ROUNDING = 1e-6


def turns_there(turn_bt: Tensor, mask_bt: Tensor, turns: int) -> Tensor:
    """Return [B,S] bool: the turns in which a row acted."""
    there_bs = torch.zeros(len(turn_bt), turns + 1, dtype=torch.bool, device=turn_bt.device)
    return there_bs.scatter(1, torch.where(mask_bt, turn_bt, -1) + 1, True)[:, 1:]


def has_turn(batch: Batch, turns: int, reader: str) -> Tensor:
    """Return [B,S] bool: the turns in which a row acted. Raises InputError if a turn number is not below `turns`."""
    turn_bt = torch.where(batch.mask_bt, batch.need("turn_bt", reader), -1)
    if int(turn_bt.max()) >= turns:
        raise InputError(
            f"turn_bt has turn {int(turn_bt.max())}, but the fields of turns have only {turns}",
            "each turn has a reward",
        )
    return turns_there(turn_bt, batch.mask_bt, turns)


def turns_of(batch: Batch, reader: str) -> Tensor:
    """Return [B,S] bool: the turns in which a row acted, S the most turns of a row."""
    turn_bt = torch.where(batch.mask_bt, batch.need("turn_bt", reader), -1)
    return has_turn(batch, int(turn_bt.max()) + 1, reader)


def last_turn(there_bs: Tensor) -> Tensor:
    """Return [B,S] bool: the last turn of each row."""
    position_s = torch.arange(there_bs.shape[1], device=there_bs.device)
    return there_bs & (position_s == torch.where(there_bs, position_s, -1).amax(1, keepdim=True))


def next_turn(value_bs: Tensor, there_bs: Tensor, fill: float) -> Tensor:
    """Return [B,S] value of the next turn of a row, `fill` in its last."""
    carry_b, found = torch.full_like(value_bs[:, 0], fill), []
    for k in reversed(range(there_bs.shape[1])):
        found.append(carry_b)
        carry_b = torch.where(there_bs[:, k], value_bs[:, k], carry_b)
    return torch.stack(found[::-1], 1)


def split_rewards(reward_b: Tensor, turn_reward_bs: Tensor, there_bs: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B,S] rewards of the existing turns, and [B] the rest of a row's reward, 0 if it is rounding."""
    reward_bs = torch.where(there_bs, turn_reward_bs.to(reward_b.dtype), 0)
    rest_b = reward_b - reward_bs.sum(1)
    earned_b = reward_b.abs() + reward_bs.abs().sum(1)
    return reward_bs, torch.where(rest_b.abs() > ROUNDING * earned_b, rest_b, 0)


def turn_rewards(batch: Batch, there_bs: Tensor, reader: str) -> tuple[Tensor, Tensor]:
    """Return [B,S] rewards of the existing turns, 0 elsewhere; and [B] the rest of a row's reward.

    A rest below a millionth of the reward is rounding and becomes 0: its spread would look like one of rewards.
    """
    return split_rewards(batch.total_reward_b, batch.need("turn_reward_bs", reader), there_bs)


def with_the_rest(reward_bs: Tensor, rest_b: Tensor, there_bs: Tensor) -> Tensor:
    """Return [B,S] rewards of turns; the rest of a row's reward is added to its last turn."""
    return reward_bs + rest_b[:, None] * last_turn(there_bs)


def accumulated(reward_bs: Tensor, there_bs: Tensor, gamma: float, on_bs: Tensor | None = None) -> Tensor:
    """Return [B,S] Σ_{l≥k} γ^{l-k} r_l over the existing turns; 0 for turns that a row does not have.

    Nothing flows back into a turn that is not in `on_bs`: it keeps its own reward, and earlier turns get none of that.
    """
    carry_b, found = torch.zeros_like(reward_bs[:, 0]), []
    for k in reversed(range(there_bs.shape[1])):
        own_b = reward_bs[:, k] + gamma * carry_b
        if on_bs is not None:
            found.append(torch.where(on_bs[:, k], own_b, reward_bs[:, k]))
            carry_b = torch.where(there_bs[:, k], torch.where(on_bs[:, k], own_b, 0), carry_b)
        else:
            found.append(own_b)
            carry_b = torch.where(there_bs[:, k], own_b, carry_b)
    return torch.where(there_bs, torch.stack(found[::-1], 1), 0)


def turn_returns(batch: Batch, there_bs: Tensor, gamma: float, reader: str) -> Tensor:
    """Return [B,S] discounted rewards from each turn on, G_k = Σ_{l≥k} γ^{l-k} r_l; 0 where a row has no such turn.

    The rest of a sequence's reward is added to its last turn.
    """
    return accumulated(with_the_rest(*turn_rewards(batch, there_bs, reader), there_bs), there_bs, gamma)


def to_tokens(value_bs: Tensor, turn_bt: Tensor, mask_bt: Tensor) -> Tensor:
    """Return [B,T] value of the turn of each token of the mask, 0 elsewhere."""
    return value_bs.gather(1, torch.where(mask_bt, turn_bt, 0).clamp(min=0)) * mask_bt


def on_tokens(value_bs: Tensor, batch: Batch, reader: str) -> Tensor:
    """Return [B,T] value of each action token's turn, 0 elsewhere."""
    return to_tokens(value_bs, batch.need("turn_bt", reader), batch.mask_bt)


def mean_of_turns(value_bt: Tensor, active_bt: Tensor, turn_bt: Tensor, turns: int) -> Tensor:
    """Return [B,S] mean over the tokens of each turn that are `active_bt`; 0 if it has none."""
    turn_bt = torch.where(active_bt, turn_bt, 0).clamp(min=0)
    zero_bs = torch.zeros(len(turn_bt), turns, dtype=value_bt.dtype, device=value_bt.device)
    size_bs = zero_bs.scatter_add(1, turn_bt, active_bt.to(value_bt.dtype))
    return zero_bs.scatter_add(1, turn_bt, torch.where(active_bt, value_bt, 0)) / size_bs.clamp(min=1)


def turn_means(value_bt: Tensor, active_bt: Tensor, batch: Batch, there_bs: Tensor, reader: str) -> Tensor:
    """Return [B,S] mean over the tokens of each turn that are `active_bt`; 0 if it has none."""
    return mean_of_turns(value_bt, active_bt, batch.need("turn_bt", reader), there_bs.shape[1])


def ends_of_turns(turn_bt: Tensor, mask_bt: Tensor, turns: int) -> Tensor:
    """Return [B,T] bool: the last token of each turn that is in the mask."""
    turn_bt = torch.where(mask_bt, turn_bt, 0).clamp(min=0)
    position_bt = torch.arange(mask_bt.shape[1], device=turn_bt.device).expand_as(turn_bt)
    none_bs = torch.full((len(turn_bt), turns), -1, device=turn_bt.device)
    end_bs = none_bs.scatter_reduce(1, turn_bt, torch.where(mask_bt, position_bt, -1), "amax")
    return mask_bt & (position_bt == end_bs.gather(1, turn_bt))


def last_tokens(batch: Batch, there_bs: Tensor, reader: str) -> Tensor:
    """Return [B,T] bool: the last action token of each turn."""
    return ends_of_turns(batch.need("turn_bt", reader), batch.mask_bt, there_bs.shape[1])


def same_actions(batch: Batch, there_bs: Tensor, reader: str) -> Tensor:
    """Return [B,S] int64: equal numbers where turns consist of the same tokens; -1 where a row has no such turn."""
    token_bt, turn_bt = batch.need("token_bt", reader), batch.need("turn_bt", reader)
    return numbered_actions(token_bt, turn_bt, batch.mask_bt, there_bs.shape[1])


def numbered_actions(token_bt: Tensor, turn_bt: Tensor, mask_bt: Tensor, turns: int) -> Tensor:
    """Return [B,S] int64: equal numbers where turns consist of the same tokens; -1 where a row has no such turn."""
    numbers: dict[tuple[int, ...], int] = {}
    out_bs = torch.full((len(token_bt), turns), -1, device=token_bt.device)
    for b in range(len(token_bt)):
        for turn in turn_bt[b][mask_bt[b] & (turn_bt[b] >= 0)].unique().tolist():
            tokens = tuple(token_bt[b][mask_bt[b] & (turn_bt[b] == turn)].tolist())
            out_bs[b, turn] = numbers.setdefault(tokens, len(numbers))
    return out_bs
