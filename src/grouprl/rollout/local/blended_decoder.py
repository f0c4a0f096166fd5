"""Decoding of the geometric mixture of two models."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from grouprl.rollout.local.decoder_protocol import Decoder


class BlendedDecoder:
    """Two decoders that go the same way; logits are (1-share)·first + share·second.

    Keys and values are not kept between turns.
    """

    keeps = False
    past = None

    def __init__(self, first: Decoder, second: Decoder, share: float) -> None:
        self.first, self.second, self.share = first, second, share

    def start(self, prompts: Sequence[Sequence[int]], prompt_r: Sequence[int], room: int) -> torch.Tensor:
        """Read the prompts by both; return the mixed logits of each row's first token, [R,V]."""
        return self._mixed(*(each.start(prompts, prompt_r, room) for each in (self.first, self.second)))

    def step(self, token_r: torch.Tensor) -> torch.Tensor:
        """Append one token to each row of both; return the mixed logits of the next, [R,V]."""
        return self._mixed(*(each.step(token_r) for each in (self.first, self.second)))

    def keep(self, index_n: torch.Tensor) -> None:
        """Continue both with only the rows `index_n`."""
        self.first.keep(index_n)
        self.second.keep(index_n)

    def _mixed(self, first_rv: torch.Tensor, second_rv: torch.Tensor) -> torch.Tensor:
        return (1 - self.share) * first_rv + self.share * second_rv
