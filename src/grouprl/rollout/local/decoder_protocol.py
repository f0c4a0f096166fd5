"""The interface of decoders, which return the logits of the next token step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from grouprl.rollout.local.turn_cache import RowStore

READ_TOKENS = 8192
"""Largest number of tokens of prompts read in one pass."""
ALIKE = 1.25
"""Ratio of longest to shortest up to which prompts are read together."""
FEW_TOKENS = 512
"""Tokens, padding included, whose cost is about that of an extra pass: up to this many are read together."""


class Decoder(Protocol):
    """A model in the middle of decoding R sequences at once."""

    def start(self, prompts: Sequence[Sequence[int]], prompt_r: Sequence[int], room: int) -> torch.Tensor:
        """Read the distinct `prompts`, and begin R rows, row r with prompt `prompt_r[r]` and room for `room` further
        tokens.

        Returns:
            The logits of each row's first token, [R,V].
        """
        ...

    def step(self, token_r: torch.Tensor) -> torch.Tensor:
        """Append one token to each row; return the logits of the next, [R,V]."""
        ...

    def keep(self, index_n: torch.Tensor) -> None:
        """Continue with only the rows `index_n`, in this order."""
        ...


class Giving(Decoder, RowStore, Protocol):
    """A decoder that can hand over the keys and values of rows."""


def reading_order(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of prompts that are read together: prompts of similar length, to limit padding, and not too
    many.
    """
    order = np.argsort(lengths, kind="stable").tolist()
    if len(order) * max(lengths) <= FEW_TOKENS:
        yield order
        return
    batch: list[int] = []
    for i in order:
        if batch and (lengths[i] > ALIKE * lengths[batch[0]] or (len(batch) + 1) * lengths[i] > READ_TOKENS):
            yield batch
            batch = []
        batch.append(i)
    yield batch
