"""The places at which sequences and texts end a completion that a server has sampled too far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from grouprl.rollout.local.stopping import StopTexts

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy

Ids = tuple[int, ...]


def text_ends(policy: CausalPolicy, texts: Sequence[str], rows: Sequence[Ids]) -> list[int | None]:
    """Return, for each row of token ids, the number of tokens up to the one that completes one of `texts`; None without
    one.
    """
    width = max(map(len, rows), default=0)
    token_tb = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in rows], device=policy.device).T
    row_r, stops = torch.arange(len(rows), device=policy.device), StopTexts(policy, texts)
    ends: list[int | None] = [None] * len(rows)
    for t in range(width):
        ended = stops.ended(token_tb, row_r, t).tolist()
        for i, ids in enumerate(rows):
            if ended[i] and ends[i] is None and t < len(ids):
                ends[i] = t + 1
    return ends


def sequence_end(ids: Ids, stops: Sequence[Ids]) -> int | None:
    """Return the number of tokens up to the end of the first occurrence of a sequence of `stops`; None without one."""
    ends = (t + 1 for t in range(len(ids)) if any(ids[: t + 1][-len(stop) :] == stop for stop in stops))
    return next(ends, None)
