"""Decoding of a mixture of two models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from grouprl.policy.logprobs import log_softmax_of
from grouprl.rollout.local.decoder_protocol import Decoder

Mix = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function of the logits of two models, [R,V] each, that gives those of their mixture."""


def geometric(share: float) -> Mix:
    """Return the mixture whose logits are (1-share)·first + share·second."""
    return lambda first_rv, second_rv: (1 - share) * first_rv + share * second_rv


def arithmetic(share: float, temperature: float) -> Mix:
    """Return the mixture whose softmax at `temperature` is (1-share)·π_first + share·π_second, 0 < share < 1.

    Columns that only one of two padded vocabularies has are not tokens, and are left out.
    """

    def mixed(first_rv: torch.Tensor, second_rv: torch.Tensor) -> torch.Tensor:
        common = min(first_rv.shape[1], second_rv.shape[1])
        first_rv, second_rv = (log_softmax_of(x[:, :common], temperature) for x in (first_rv, second_rv))
        mixed_rv = torch.logaddexp(first_rv + math.log(1 - share), second_rv.to(first_rv) + math.log(share))
        return temperature * mixed_rv

    return mixed


class BlendedDecoder:
    """Two decoders that get the same tokens; logits are a mixture of theirs.

    Keys and values are not kept between turns.
    """

    keeps = False
    past = None

    def __init__(self, first: Decoder, second: Decoder, mix: Mix) -> None:
        self.first, self.second, self.mix = first, second, mix

    def start(self, prompts: Sequence[Sequence[int]], prompt_r: Sequence[int], room: int) -> torch.Tensor:
        """Read the prompts by both; return the mixed logits of each row's first token, [R,V]."""
        return self.mix(*(each.start(prompts, prompt_r, room) for each in (self.first, self.second)))

    def step(self, token_r: torch.Tensor) -> torch.Tensor:
        """Append one token to each row of both; return the mixed logits of the next, [R,V]."""
        return self.mix(*(each.step(token_r) for each in (self.first, self.second)))

    def keep(self, index_n: torch.Tensor) -> None:
        """Continue both with only the rows `index_n`."""
        self.first.keep(index_n)
        self.second.keep(index_n)
