"""The policy as samplers, scorers and servers of text see it, whether it is one language model or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from grouprl.core.json_types import JsonMapping
    from grouprl.records.tokens import Tokens


class TextSide(Protocol):
    """The part of a policy that reads and writes text; it needs no model."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, which also holds the chat template."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        ...

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of many texts."""
        ...

    def encode_prompt(self, prompt: str | Sequence[JsonMapping]) -> list[int]:
        """Return the tokens of a prompt."""
        ...

    def encode_prompts(self, prompts: Sequence[str | Sequence[JsonMapping]]) -> list[list[int]]:
        """Return the tokens of many prompts."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        ...

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of many rows, their end tokens left out."""
        ...


class TokenPolicy(TextSide, Protocol):
    """A policy that reads and writes tokens: a language model, a team of them, or one that is sharded over ranks."""

    @property
    def temperature(self) -> float:
        """The temperature at which log-probs are computed."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters."""
        ...

    @property
    def precision(self) -> str:
        """The precision of matrix products."""
        ...

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of log-probs, entropies and values."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model was built for; None if unknown."""
        ...

    def logp(self, tokens: Tokens, /) -> Tensor:
        """Return the log-prob of every response token, [B,T]."""
        ...

    def evaluate(self, tokens: Tokens, names: Sequence[str], /, *, grad: bool = False) -> dict[str, Tensor]:
        """Return the outputs `names` of the responses of `tokens`; see `CausalPolicy.evaluate`."""
        ...
