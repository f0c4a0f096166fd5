"""What statistics, gradient norms and frozen copies need of a language model."""

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
        """Where the parameters live."""

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of log-probs, entropies and values."""

    def readouts(self, tokens: Tokens, rows: Sequence[int] | None = None, /) -> Iterator[tuple[list[int], Readout]]:
        """Run `rows` (None: all) and yield the rows of each pass with its states."""

    def logp(self, tokens: Tokens, /) -> torch.Tensor:
        """Return the log-probs of the responses of `tokens` at the policy's temperature, [B,T]."""

    def copied(self, *, trainable: bool = True) -> IntrospectablePolicy:
        """Return a copy as it is now, that shares no weights."""
