"""Where each token of a pass lies: packed for everything that works token by token, padded for attention alone.

A pass is one stream of S tokens without padding: first the prefixes, then the branches. When prompts are shared, a
prefix is a distinct prompt and a branch is a response, whose tokens attend to their prompt's keys and to their own.
Otherwise a prefix is a whole sequence, in up to four classes of similar length, and there are no branches. The last
token of a response predicts nothing and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from .tokens import Tokens

WORTH_SPLITTING = 0.2
"""Share of attention's work that a second class of rows must save; it costs as many operations as the first."""


@dataclass(frozen=True)
class Block:
    """Rows that attend alike: index of each row's tokens in the stream, padded on the right.

    Attributes:
        token_rl: stream index of the row's tokens, [R,L]; -1 stands for padding.
        prefix_r: which prefix's keys come before the row's own, [R]; None for prefixes.
        bias: added to the attention scores, [1 or R, 1, L, keys]: 0 where a key may be seen, else -inf.
    """

    token_rl: torch.Tensor
    prefix_r: torch.Tensor | None
    bias: torch.Tensor


@dataclass(frozen=True)
class Plan:
    """The stream of one pass.

    Attributes:
        ids_s: token ids, [S].
        position_s: position of each token in its own sequence, [S].
        state_m: stream index of the state that predicts each response token, [M], row after row.
        target_m: the response tokens, [M].
        blocks: prefixes, then branches if there are any, in classes of similar length. Where there are branches, all
            prefixes are one block.
    """

    ids_s: torch.Tensor
    position_s: torch.Tensor
    state_m: torch.Tensor
    target_m: torch.Tensor
    blocks: tuple[Block, ...]


def plan_pass(tokens: Tokens, dtype: torch.dtype, device: torch.device, *, shared: bool = True) -> Plan:
    """Lay out the rows of `tokens`; with `shared`, a prompt that several rows have is run once."""
    distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(tokens.prompt_ids))}
    if not shared or len(distinct) == len(tokens):
        return _plan_whole(tokens, dtype, device)
    return _plan_shared(tokens, distinct, dtype, device)


def _plan_whole(tokens: Tokens, dtype: torch.dtype, device: torch.device) -> Plan:
    prompt_b, response_b = _lengths(tokens)
    rows = [p + r[:-1] for p, r in zip(tokens.prompt_ids, tokens.response_ids, strict=True)]
    length_b = prompt_b + np.maximum(response_b - 1, 0)
    start_b = _starts(length_b)
    state_m = np.repeat(start_b + prompt_b - 1, response_b) + _ramps(response_b)
    classes = length_classes(length_b, 0)
    blocks = [
        Block(_padded(start_b[rows], length_b[rows], device), None, _causal(int(length_b[rows].max()), dtype, device))
        for some in classes
        for rows in (some[part] for part in length_classes(length_b[some], 0))
    ]
    return Plan(
        _flat(rows, device),
        _tensor(_ramps(length_b), device),
        _tensor(state_m, device),
        tokens.targets().to(device),
        tuple(blocks),
    )


def _plan_shared(
    tokens: Tokens, distinct: dict[tuple[int, ...], int], dtype: torch.dtype, device: torch.device
) -> Plan:
    prompt_b, response_b = _lengths(tokens)
    prefix_b = np.array([distinct[prompt] for prompt in tokens.prompt_ids])
    prefix_n = np.array([len(prompt) for prompt in distinct])
    prefix_start_n = _starts(prefix_n)
    branch_b = np.maximum(response_b - 1, 0)
    branch_start_b = prefix_n.sum() + _starts(branch_b)
    state_m = np.repeat(branch_start_b - 1, response_b) + _ramps(response_b)
    state_m[_starts(response_b)[response_b > 0]] = (prefix_start_n + prefix_n - 1)[prefix_b[response_b > 0]]
    blocks = [Block(_padded(prefix_start_n, prefix_n, device), None, _causal(int(prefix_n.max()), dtype, device))]
    going = branch_b > 0
    start_r, length_r, prefix_r = branch_start_b[going], branch_b[going], prefix_b[going]
    for rows in length_classes(length_r, int(prefix_n.max())):
        blocks.append(_branches(start_r[rows], length_r[rows], prefix_r[rows], prefix_n, dtype, device))
    ids = [*distinct, *(response[:-1] for response in tokens.response_ids)]
    position_s = np.concatenate([_ramps(prefix_n), np.repeat(prompt_b, branch_b) + _ramps(branch_b)])
    return Plan(
        _flat(ids, device),
        _tensor(position_s, device),
        _tensor(state_m, device),
        tokens.targets().to(device),
        tuple(blocks),
    )


def length_classes(length_r: np.ndarray, prefix: int) -> list[np.ndarray]:
    """Cut rows into one or two classes of similar length, so that a few long rows do not pad all others.

    Attention costs rows * longest * (prefix + longest) in each class; two classes must save `WORTH_SPLITTING` of it.
    Returns the indices of each class, nothing for no rows.
    """
    if not len(length_r):
        return []
    order, longest = np.argsort(length_r, kind="stable"), int(length_r.max())
    sorted_r, count = length_r[order], np.arange(1, len(length_r) + 1)
    whole = len(length_r) * longest * (prefix + longest)
    cost = count * sorted_r * (prefix + sorted_r) + (len(length_r) - count) * longest * (prefix + longest)
    cut = int(cost.argmin()) + 1
    if cost.min() > (1 - WORTH_SPLITTING) * whole:
        return [np.arange(len(length_r))]
    return [np.sort(order[:cut]), np.sort(order[cut:])]


def _branches(
    start_r: np.ndarray,
    length_r: np.ndarray,
    prefix_r: np.ndarray,
    prefix_n: np.ndarray,
    dtype: torch.dtype,
    device: torch.device,
) -> Block:
    own = _causal(int(length_r.max()), dtype, device)
    seen_nk = np.arange(prefix_n.max()) < prefix_n[:, None]
    ragged = not seen_nk.all()
    seen_rk = _tensor(seen_nk[prefix_r] if ragged else seen_nk[:1], device)
    to_prompt = torch.zeros(seen_rk.shape, dtype=dtype, device=device).masked_fill_(~seen_rk, -torch.inf)
    rows, width = to_prompt.shape[0], own.shape[-1]
    bias = torch.cat([to_prompt[:, None, None].expand(-1, 1, width, -1), own.expand(rows, -1, -1, -1)], dim=-1)
    return Block(_padded(start_r, length_r, device), _tensor(prefix_r, device), bias)


def _causal(width: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full((1, 1, width, width), -torch.inf, dtype=dtype, device=device).triu_(1)


def _padded(start_r: np.ndarray, length_r: np.ndarray, device: torch.device) -> torch.Tensor:
    at_l = np.arange(length_r.max())
    return _tensor(np.where(at_l < length_r[:, None], start_r[:, None] + at_l, -1), device)


def _lengths(tokens: Tokens) -> tuple[np.ndarray, np.ndarray]:
    return np.array(tokens.prompt_lengths), np.array(tokens.response_lengths)


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths) - lengths


def _ramps(lengths: np.ndarray) -> np.ndarray:
    """0, 1, ..., n - 1 for each n of `lengths`, one after the other."""
    return np.arange(lengths.sum()) - np.repeat(_starts(lengths), lengths)


def _flat(rows: list[tuple[int, ...]], device: torch.device) -> torch.Tensor:
    return _tensor(np.fromiter(chain.from_iterable(rows), dtype=np.int64), device)


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
