"""Arithmetic over the turns of each row: which turns exist, what they earn, and spreading their values over tokens.

`there_bs` says which turns a row has; columns of turns are as wide as the field of turns that a part reads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.core.batch import Batch
from grouprl.core.errors import InputError

ROUNDING = 1e-6


def has_turn(batch: Batch, turns: int, reader: str) -> Tensor:
    """Return [B,S] bool: the turns in which a row acted. Raises InputError if a turn number is not below `turns`."""
    turn_bt = torch.where(batch.mask_bt, batch.need("turn_bt", reader), -1)
    if int(turn_bt.max()) >= turns:
        raise InputError(
            f"turn_bt has turn {int(turn_bt.max())}, but the fields of turns have only {turns}",
            "each turn has a reward",
        )
    there_bs = torch.zeros(len(turn_bt), turns + 1, dtype=torch.bool, device=turn_bt.device)
    return there_bs.scatter(1, turn_bt + 1, True)[:, 1:]


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


def turn_rewards(batch: Batch, there_bs: Tensor, reader: str) -> tuple[Tensor, Tensor]:
    """Return [B,S] rewards of the existing turns, 0 elsewhere; and [B] the rest of a row's reward.

    A rest below a millionth of the reward is rounding and becomes 0: its spread would look like one of rewards.
    """
    reward_bs = torch.where(there_bs, batch.need("turn_reward_bs", reader).to(batch.dtype), 0)
    rest_b = batch.total_reward_b - reward_bs.sum(1)
    earned_b = batch.total_reward_b.abs() + reward_bs.abs().sum(1)
    return reward_bs, torch.where(rest_b.abs() > ROUNDING * earned_b, rest_b, 0)


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


def on_tokens(value_bs: Tensor, batch: Batch, reader: str) -> Tensor:
    """Return [B,T] value of each action token's turn, 0 elsewhere."""
    turn_bt = torch.where(batch.mask_bt, batch.need("turn_bt", reader), 0).clamp(min=0)
    return value_bs.gather(1, turn_bt) * batch.mask_bt


def turn_means(value_bt: Tensor, active_bt: Tensor, batch: Batch, there_bs: Tensor, reader: str) -> Tensor:
    """Return [B,S] mean over the tokens of each turn that are `active_bt`; 0 if it has none."""
    turn_bt = torch.where(active_bt, batch.need("turn_bt", reader), 0).clamp(min=0)
    zero_bs = torch.zeros(there_bs.shape, dtype=value_bt.dtype, device=value_bt.device)
    size_bs = zero_bs.scatter_add(1, turn_bt, active_bt.to(value_bt.dtype))
    return zero_bs.scatter_add(1, turn_bt, torch.where(active_bt, value_bt, 0)) / size_bs.clamp(min=1)


def last_tokens(batch: Batch, there_bs: Tensor, reader: str) -> Tensor:
    """Return [B,T] bool: the last action token of each turn."""
    turn_bt = torch.where(batch.mask_bt, batch.need("turn_bt", reader), 0).clamp(min=0)
    position_bt = torch.arange(batch.size[1], device=turn_bt.device).expand_as(turn_bt)
    seen_bt = torch.where(batch.mask_bt, position_bt, -1)
    end_bs = torch.full(there_bs.shape, -1, device=turn_bt.device).scatter_reduce(1, turn_bt, seen_bt, "amax")
    return batch.mask_bt & (position_bt == end_bs.gather(1, turn_bt))


def same_actions(batch: Batch, there_bs: Tensor, reader: str) -> Tensor:
    """Return [B,S] int64: equal numbers where turns consist of the same tokens; -1 where a row has no such turn."""
    token_bt, turn_bt = batch.need("token_bt", reader), batch.need("turn_bt", reader)
    rows = zip(token_bt.tolist(), turn_bt.tolist(), batch.mask_bt.tolist(), strict=True)
    numbers: dict[tuple[int, ...], int] = {}
    out_bs = torch.full(there_bs.shape, -1, dtype=torch.int64)
    for b, (tokens, turns, acted) in enumerate(rows):
        words: dict[int, list[int]] = {}
        for token, turn, here in zip(tokens, turns, acted, strict=True):
            if here and turn >= 0:
                words.setdefault(turn, []).append(token)
        for turn, ids in words.items():
            out_bs[b, turn] = numbers.setdefault(tuple(ids), len(numbers))
    return out_bs.to(there_bs.device)
