"""Dividing rows into passes that fit a token budget, and joining the results of the passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from grouprl.records.tokens import Tokens

KEYS_SHARE = 8
"""Divisor of the cost of shared tokens: for each further row they cost an eighth, since their keys and values are
gathered per row.
"""

EVEN_STEPS = 32
"""Number of budget steps in the search for passes of even sizes."""


def split_rows(tokens: Tokens, rows: Sequence[int], budget: int, *, shared: bool = False) -> list[list[int]]:
    """Divide `rows` into passes of at most `budget` tokens (a longer row is a pass of its own).

    Rows of one prompt stay together, because a pass can run their prompt once; prompts are sorted by length, and rows
    of a prompt by the length of their response, which keeps padding small. With `shared`, only the first row of a
    prompt in a pass is charged the whole prompt.
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
    """Divide `rows` into passes as `split_rows` does, for passes that run shared beginnings of rows once.

    Rows with long common beginnings stay together. If sharing does not leave `pays` times fewer tokens, rows are
    divided as if they shared nothing.
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
    return passes if len(passes) != 1 else [list(rows)]  # keep the given order, so that the cached tree remains valid


def split_evenly(cut: Callable[[int], list[list[int]]], budget: int) -> list[list[int]]:
    """Divide rows as `cut` does within `budget` tokens, into the same number of passes of more even sizes: the largest
    then needs less memory.
    """
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
    """Arrange the passes' results for response tokens, each [M, …] row after row, as [B,T,…], zero everywhere else.

    Without any passes the result is all zeros, [B,T].
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
