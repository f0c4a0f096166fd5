"""The division of rows among ranks: balanced by tokens, with rows of one prompt together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence


def split_over_ranks(
    prompts: Sequence[Hashable], shared: Sequence[int], own: Sequence[int], ranks: int
) -> list[list[int]]:
    """Return the rows of each rank, in ascending order; every row is in exactly one share.

    Rows of one prompt stay on one rank, where their prompt is read once; a prompt whose rows exceed a fair share is
    divided. The costliest prompts are dealt out first, each to the rank with the least work (longest processing time
    first: Graham 1969).

    Args:
        prompts: [B] a key of each row's prompt.
        shared: [B] tokens of the row's prompt.
        own: [B] tokens of the row alone.
        ranks: number of ranks.
    """
    rows_of: dict[Hashable, list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows_of.setdefault(prompt, []).append(row)
    cost = lambda rows: shared[rows[0]] + sum(own[row] for row in rows)  # noqa: E731
    # A prompt that is divided is read on several ranks, so only those are whose rows no rank could balance.
    fair = sum(map(cost, rows_of.values())) / ranks
    pieces = [piece for rows in rows_of.values() for piece in _pieces(rows, shared, own, fair)]
    load, shares = [0] * ranks, [list[int]() for _ in range(ranks)]
    for piece in sorted(pieces, key=lambda piece: (-cost(piece), piece[0])):
        rank = load.index(min(load))
        load[rank] += cost(piece)
        shares[rank] += piece
    return [sorted(share) for share in shares]


def _pieces(rows: list[int], shared: Sequence[int], own: Sequence[int], fair: float) -> list[list[int]]:
    """Divide the rows of one prompt into pieces of about one fair share of tokens each."""
    total = sum(own[row] for row in rows)
    # The last term keeps a rounding error from cutting a prompt that is exactly a whole number of shares.
    count = max(1, math.ceil((shared[rows[0]] + total) / fair - 1e-9)) if fair else 1
    pieces: dict[int, list[int]] = {}
    before = 0
    for row in rows:
        pieces.setdefault(before * count // max(1, total), []).append(row)
        before += own[row]
    return list(pieces.values())
