"""Sizes of a model's layers, read from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def sizes_of(config: PretrainedConfig) -> tuple[int, int, int, int]:
    """Return the number of layers, hidden size, intermediate size and width of keys of a model's text configuration."""
    intermediate = largest(config, "intermediate_size") or 4 * config.hidden_size
    return config.num_hidden_layers, config.hidden_size, intermediate, key_heads_of(config) * head_width(config)


def key_heads_of(config: PretrainedConfig) -> int:
    """Return the number of a layer's heads of keys; GPTBigCode and the first Falcon models share one by a setting of
    its own.
    """
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
        return 1
    return largest(config, "num_key_value_heads") or heads_of(config)


def heads_of(config: PretrainedConfig) -> int:
    """Return the number of a layer's query heads; 1 for a model without attention."""
    return largest(config, "num_attention_heads") or 1


def head_width(config: PretrainedConfig) -> int:
    """Return the width of a head of attention."""
    return largest(config, "head_dim") or config.hidden_size // heads_of(config)


def largest(config: PretrainedConfig, name: str) -> int | None:
    """Return a size of a text configuration, the largest where it differs from layer to layer; None if it has none."""
    layers = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config]
    found = [getattr(layer, name, None) for layer in layers]
    return max(chain.from_iterable(x if isinstance(x, Sequence) else [x or 0] for x in found), default=0) or None
