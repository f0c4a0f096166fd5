"""Cutting rows into passes that fit a token budget."""

from __future__ import annotations

from collections.abc import Sequence

from .tokens import Tokens


def split_rows(tokens: Tokens, rows: Sequence[int], budget: int) -> list[list[int]]:
    """Cut `rows` into passes of at most `budget` tokens (a longer row is a pass of its own).

    Rows of one prompt stay neighbours, because a pass can run their prompt once; prompts follow each other by length
    and rows of a prompt by the length of their response, which keeps padding small.
    """
    lengths = tokens.lengths
    order = sorted(rows, key=lambda i: (len(tokens.prompt_ids[i]), tokens.prompt_ids[i], lengths[i], i))
    passes: list[list[int]] = []
    used = budget + 1
    for row in order:
        if used + lengths[row] > budget:
            passes.append([])
            used = 0
        passes[-1].append(row)
        used += lengths[row]
    return passes
