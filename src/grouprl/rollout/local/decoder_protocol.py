"""What the sampler needs of a model: logits of the next token, one step after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from grouprl.rollout.local.turn_cache import Past, RowStore

READ_TOKENS = 8192
"""Most tokens of prompts read in one pass."""
ALIKE = 1.25
"""Prompts are read together up to this ratio of longest to shortest."""
FEW_TOKENS = 512
"""So many tokens, padding included, cost about as much as a pass by itself: they are read together."""


class Decoder(Protocol):
    """A model in the middle of decoding R sequences at once."""

    def start(self, prompts: Sequence[Sequence[int]], prompt_r: Sequence[int], room: int) -> torch.Tensor:
        """Read the distinct `prompts`, begin R rows with prompt `prompt_r[r]` each, `room` tokens for each to come.

        Returns:
            Logits of each row's first token, [R,V].
        """
        ...

    def step(self, token_r: torch.Tensor) -> torch.Tensor:
        """Append one token to each row; return the logits of the next, [R,V]."""
        ...

    def keep(self, index_n: torch.Tensor) -> None:
        """Go on with the rows `index_n` only, in this order."""
        ...


class Giving(Decoder, RowStore, Protocol):
    """A decoder that can hand over the keys and values of rows."""


class KeepingDecoder(Giving, Protocol):
    """A decoder that can also continue from such keys and values."""

    past: Past | None
    """What is known of the beginnings of prompts (`grouprl.rollout.local.turn_cache.Past`), set before `start`; None:
    nothing."""


def reading_order(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield which prompts are read together: of similar length, so that little is padding, and not too many."""
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
