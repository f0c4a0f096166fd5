"""Cutting rows into passes that fit a token budget."""

from __future__ import annotations

from collections.abc import Sequence

from .tokens import Tokens

KEYS_SHARE = 8
"""A shared prompt costs a further row an eighth of its tokens: its keys and values are laid out once per row."""


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
