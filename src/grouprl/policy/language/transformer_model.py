"""A transformer with its tokenizer: what runs it, and how rows are cut into passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grouprl.policy.devices import Precision
from grouprl.policy.engine import ModelEngine
from grouprl.policy.fast_forward.forward import LeanEngine, LeanModel
from grouprl.policy.generation import end_tokens
from grouprl.policy.language.choose_engine import choose_engine
from grouprl.policy.language.model_checks import positions_of
from grouprl.policy.language.text import TextModel
from grouprl.policy.passes import (
    AUTO,
    PassSettings,
    bytes_per_token,
    cached_tokens,
    checkpointing_threshold,
    free_bytes,
)
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TOKEN_BUDGET = {"cpu": 4096, "cuda": 32768}
"""Tokens of one pass through the model: on a CPU as many as its cache holds, on a GPU enough to keep it busy."""


class TransformerModel(TextModel):
    """Base of trainable transformers: the model, its tokenizer, and the engine that runs it.

    The model's dropout is off in every pass, so that an output is a function of the weights alone; only the dropout of
    LoRA adapters, if it was requested, acts in passes that take gradients. The arguments are those of `CausalPolicy`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        engine: str = "auto",
        passes: PassSettings = AUTO,
        token_budget: int | None = None,
        precision: str = "float32",
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.token_budget = token_budget or TOKEN_BUDGET.get(self.device.type, TOKEN_BUDGET["cuda"])
        self.pass_settings = passes
        text = model.config.get_text_config()
        per_token = bytes_per_token(text, self.dtype.itemsize)
        checkpoint_above = checkpointing_threshold(passes.checkpointing, per_token, free_bytes(str(self.device)))
        piece = self.token_budget
        self._engine = self._choose_engine(
            lambda: choose_engine(model, engine, passes, checkpoint_above, precision, piece)
        )
        mixed = self.lean is not None and self.lean.precision == "mixed"
        self._cached_tokens = cached_tokens(text, self.device, mixed=mixed)

    def _choose_engine(self, choose: Callable[[], ModelEngine]) -> ModelEngine:
        """Return the engine; choosing it runs the model on a few tokens."""
        return choose()

    @property
    def engine(self) -> str:
        """The engine in use: "lean" or "transformers"."""
        return self._engine.name

    @property
    def precision(self) -> Precision:
        """The precision of products: "float32" (in the type of the weights), "onednn" (the same by oneDNN) or "mixed"
        (in bfloat16).
        """
        return "float32" if self.lean is None else self.lean.precision

    @property
    def lean(self) -> LeanModel | None:
        """The lean view of the model; None if another engine is in use."""
        return self._engine.lean if isinstance(self._engine, LeanEngine) else None

    @contextmanager
    def full_precision(self) -> Iterator[None]:
        """Compute products in the type of the weights within this context, even if the policy uses mixed precision."""
        lean = self.lean
        if lean is None:
            yield
            return
        before, lean.precision = lean.precision, "float32"
        try:
            yield
        finally:
            lean.precision = before

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the model's weights."""
        return next(self.model.parameters()).dtype

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of all outputs: float32, or float64 for a float64 model."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion: those of the tokenizer and of the model's generation settings."""
        return end_tokens(self.model, self.tokenizer)

    @property
    def widths(self) -> tuple[int, int]:
        """The hidden width of the model and its number of layers."""
        config = self.model.config.get_text_config()
        return config.hidden_size, config.num_hidden_layers

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model was built for; None if unknown."""
        return positions_of(self.model.config.get_text_config())

    @property
    def pass_tokens(self) -> int:
        """Largest number of tokens of a pass: the budget, or on a CPU as many as its cache holds."""
        return min(self.token_budget, self._cached_tokens)

    def passes(self, tokens: Tokens, rows: Sequence[int]) -> list[list[int]]:
        """Cut `rows` of `tokens` into passes that fit the token budget."""
        return self._engine.split(tokens, rows, self.pass_tokens)

    def _run(self, tokens: Tokens, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the outputs `names` of one pass."""
        raise NotImplementedError

    def _backward_pass(self, tokens: Tokens, cotangents: Mapping[str, Tensor]) -> None:
        """Add the gradients of sum(cotangent * output) of one pass."""
        raise NotImplementedError
