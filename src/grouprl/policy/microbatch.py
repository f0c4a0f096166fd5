"""Cutting rows into passes that fit a token budget, and joining the results of the passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from grouprl.records.tokens import Tokens

KEYS_SHARE = 8
"""What is shared costs a further row an eighth of its tokens: its keys and values are laid out once per row."""

EVEN_STEPS = 32
"""Passes of even sizes are sought to so many parts of their budget."""


def split_rows(tokens: Tokens, rows: Sequence[int], budget: int, *, shared: bool = False) -> list[list[int]]:
    """Cut `rows` into passes of at most `budget` tokens (a longer row is a pass of its own).

    Rows of one prompt stay neighbours, because a pass can run their prompt once; prompts follow each other by length
    and rows of a prompt by the length of their response, which keeps padding small. With `shared`, only the first
    row of a prompt in a pass is charged the whole prompt.
    """
    order = sorted(
        rows, key=lambda i: (len(tokens.prompt_ids[i]), tokens.prompt_ids[i], len(tokens.response_ids[i]), i)
    )
    passes: list[list[int]] = []
    used = budget + 1
    for row in order:
        length, prompt = len(tokens.response_ids[row]), tokens.prompt_ids[row]
        known = shared and passes and tokens.prompt_ids[passes[-1][-1]] == prompt
        cost = length + (len(prompt) // KEYS_SHARE if known else len(prompt))
        if used + cost > budget:
            passes.append([])
            used, cost = 0, length + len(prompt)
        passes[-1].append(row)
        used += cost
    return passes


def split_tree(tokens: Tokens, rows: Sequence[int], budget: int, pays: float) -> list[list[int]]:
    """Cut `rows` into passes as `split_rows` does where a pass runs shared beginnings of its rows once.

    Rows with long common beginnings are neighbours. Where sharing leaves less than `pays` times fewer tokens, passes
    are those of rows that share nothing.
    """
    if math.isinf(pays) or (tree := tokens.rows(rows).tree).ratio <= pays:
        return split_rows(tokens, rows, budget)
    passes: list[list[int]] = []
    used = budget + 1
    for row, common, length in zip(tree.order, tree.common_r.tolist(), tree.length_r.tolist(), strict=True):
        cost = length - common + common // KEYS_SHARE
        if used + cost > budget:
            passes.append([])
            used, cost = 0, length
        passes[-1].append(rows[row])
        used += cost
    return passes if len(passes) != 1 else [list(rows)]  # in their own order: what is known of them holds


def split_evenly(cut: Callable[[int], list[list[int]]], budget: int) -> list[list[int]]:
    """Cut as `cut` does within `budget` tokens, into as many passes of more even sizes: the largest takes less
    memory."""
    passes, enough, few = cut(budget), budget, budget // 2
    while enough - few > budget // EVEN_STEPS:
        tried = (enough + few) // 2
        found = cut(tried)
        if len(found) == len(passes):
            passes, enough = found, tried
        else:
            few = tried
    return passes


def join_passes(tokens: Tokens, passes: Sequence[Sequence[int]], results: Sequence[torch.Tensor]) -> torch.Tensor:
    """Lay what each pass found of its response tokens, [M, …] row after row, into [B,T,…], zero everywhere else.

    Nothing found (no passes at all) is all zeros, [B,T].
    """
    shape = (len(tokens), tokens.max_response)
    if not results:
        return torch.zeros(shape)
    values_m = torch.cat(list(results))
    where_m = _places(tokens, [row for rows in passes for row in rows]).to(values_m.device)
    flat = values_m.new_zeros(shape[0] * shape[1], *values_m.shape[1:])
    return flat.index_copy(0, where_m, values_m).view(*shape, *values_m.shape[1:])


def _places(tokens: Tokens, order: Sequence[int]) -> torch.Tensor:
    row_b = np.asarray(order, dtype=np.int64)
    length_b = np.asarray(tokens.response_lengths, dtype=np.int64)[row_b]
    position_m = np.arange(length_b.sum()) - np.repeat(np.cumsum(length_b) - length_b, length_b)
    return torch.from_numpy(np.repeat(row_b * tokens.max_response, length_b) + position_m)
