"""What the sampler needs of a model: logits of the next token, one step after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class Decoder(Protocol):
    """A model in the middle of writing R sequences at once."""

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
