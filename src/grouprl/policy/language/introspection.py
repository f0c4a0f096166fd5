"""The language model as statistics, gradient norms and frozen copies see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from grouprl.policy.engine import Readout
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class IntrospectablePolicy(Protocol):
    """A language model whose states and distributions can be read; `CausalPolicy` is one."""

    model: PreTrainedModel
    temperature: float

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of log-probs, entropies and values."""

    def readouts(self, tokens: Tokens, rows: Sequence[int] | None = None, /) -> Iterator[tuple[list[int], Readout]]:
        """Run `rows` (None: all) and yield the rows of each pass with its readout."""

    def logp(self, tokens: Tokens, /) -> torch.Tensor:
        """Return the log-probs of the responses of `tokens` at the policy's temperature, [B,T]."""

    def copied(self, *, trainable: bool = True) -> IntrospectablePolicy:
        """Return a copy of the policy as it is now, which shares no weights with it."""
