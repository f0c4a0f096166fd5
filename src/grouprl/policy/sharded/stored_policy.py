"""A policy as the checkpoint of several processes holds it, which one process writes as a model without having room for
it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from grouprl.policy.generation import end_tokens
from grouprl.policy.sharded.outline import Outline, plain_name
from grouprl.policy.sharded.sharded_weights import entries, save_sharded, save_weights
from grouprl.storage.model_files import StoredTensors
from grouprl.storage.shards import WEIGHTS, PartsReader

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class StoredModel:
    """A model whose parameters stay on disk: each is read, whole, when it is asked for.

    Args:
        outline: the model of the run, without weights.
        folder: the parts of a checkpoint.

    Raises:
        RunError: the parts cannot be read.
    """

    def __init__(self, outline: Outline, folder: Path) -> None:
        self._outline, self._parts = outline, PartsReader(folder)
        self.model: PreTrainedModel = outline.model
        self.tokenizer: PreTrainedTokenizerBase = outline.tokenizer

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return next(self.model.parameters()).dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the model that `save` writes."""
        return sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in (e.described for e in entries(self.model)))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every trainable parameter, without its numbers."""
        yield from ((name, each) for name, each in self.model.named_parameters() if each.requires_grad)

    def gathered(self, names: Iterable[str], name: str = "") -> Iterator[tuple[str, Tensor]]:
        """Yield parameters one after the other: those that were trained from the checkpoint, those below adapters from
        the files of the model that the run began with.
        """
        for each in names:
            if f"{WEIGHTS}{each}" in self._parts.shapes:
                yield each, self._parts.read(f"{WEIGHTS}{each}")
            else:
                yield each, self._below[plain_name(each)].to(self.dtype)

    @cached_property
    def _below(self) -> StoredTensors | dict[str, Tensor]:
        """The weights that the run began with; in memory only if they have no files in the model's own names."""
        weights = self._outline.weights
        return weights if isinstance(weights, StoredTensors) else dict(weights())

    def save(self, folder: Path) -> None:
        """Write model and tokenizer as an ordinary Hugging Face folder, tensor by tensor, adapters merged."""
        save_weights(self, folder)
        self.tokenizer.save_pretrained(folder)


class StoredPolicy(StoredModel):
    """A policy whose parameters stay on disk; see `StoredModel`."""

    def __init__(self, outline: Outline, folder: Path) -> None:
        super().__init__(outline, folder)
        shape = self._parts.shapes.get(f"{WEIGHTS}value_head.weight")
        self.value_head = None if shape is None else nn.Linear(shape[1], shape[0], device="meta")

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""
        return end_tokens(self.model, self.tokenizer)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every trainable parameter, without its numbers; those of the value head come last."""
        yield from super().named_parameters()
        if self.value_head is not None:
            yield from ((f"value_head.{name}", each) for name, each in self.value_head.named_parameters())

    def save(self, folder: Path) -> None:
        """Write an ordinary Hugging Face folder, tensor by tensor, adapters merged; see `CausalPolicy.save`."""
        save_sharded(self, folder, adapter_only=False)
