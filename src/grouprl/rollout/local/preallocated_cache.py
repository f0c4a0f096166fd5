"""A cache for transformers whose keys and values are written into preallocated memory instead of growing by copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from grouprl.policy.language.model_checks import stray_window
from grouprl.rollout.local.turn_cache import Past

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel


class PreallocatedLayer(DynamicLayer):
    """Keys and values [R, heads, slots, d] of one layer; the model gets a view of the slots used so far."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots, self.used = slots, 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make room for as many rows as are given."""
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        self._room = [x.new_zeros(*x.shape[:2], self.slots, x.shape[3]) for x in (key_states, value_states)]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new keys and values after the existing ones; return all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.used + key_states.shape[2]
        for held, new in zip(self._room, (key_states, value_states), strict=True):
            held[:, :, self.used : end] = new
        self.used = end
        return self._show()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Continue with the rows `beam_idx`, at most as many as before; they move to the front."""
        for number, held in enumerate(self._room):
            held[: len(beam_idx), :, : self.used] = held[beam_idx, :, : self.used]
            # A view of fewer rows: the model takes the number of rows from what it is shown.
            self._room[number] = held[: len(beam_idx)]
        self._show()

    def _show(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = (held[:, :, : self.used] for held in self._room)
        return self.keys, self.values


class KnownLayer(DynamicLayer):
    """Keys and values of prompts that end at the last slot; known ones are not overwritten.

    For the model, the last `late` slots are still to be written, and it computes keys and values for all of them.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, late: int, new_nl: torch.Tensor) -> None:
        """Begin with `keys` and `values` [N, heads, slots, d]; `new_nl` [N, late] are the slots to be written."""
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.keys, self.values, self.late, self._new = keys, values, late, new_nl[:, None, :, None]

    def get_seq_length(self, *args: object, **kwargs: object) -> int:
        """Return the number of slots before those still to be written."""
        return int(self.keys.shape[2]) - self.late

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new keys and values only where they are not known; return all."""
        for held, new in ((self.keys, key_states), (self.values, value_states)):
            held[:, :, -self.late :] = torch.where(self._new, new, held[:, :, -self.late :])
        return self.keys, self.values


def empty_cache(model: PreTrainedModel, windows: bool = False) -> object:
    """Return an empty cache of the model's own kind; None if that does not consist of ordinary keys and values.

    With `windows`, and where a window is stated that the model does not have, layers with a sliding window hold all
    tokens like the others, and the mask hides those outside the window. This does not apply to layers with chunked
    attention.
    """
    cache = DynamicCache(config=model.config)
    text = model.config.get_text_config()
    chunked = "chunked_attention" in (getattr(text, "layer_types", None) or ())
    whole = (windows and not chunked) or stray_window(text)
    kinds = (DynamicLayer, DynamicSlidingWindowLayer) if whole else (DynamicLayer,)
    if not cache.layers or any(type(layer) not in kinds for layer in cache.layers):
        return None
    cache.layers = [DynamicLayer() for _ in cache.layers]
    return cache


def known_cache(past: Past, prompts: Sequence[Sequence[int]], width: int, late: int, device: torch.device) -> Cache:
    """Return a cache of what `past` holds of `prompts`, aligned at slot `width`, before their last `late` tokens."""
    kinds = past.kinds()
    kv = tuple(x.new_zeros(len(prompts), x.shape[1], width, x.shape[3]) for x in kinds)
    past.fill(kv, prompts)
    begin_n = [width - len(prompt) + done for prompt, done in zip(prompts, past.known(prompts), strict=True)]
    new_nl = torch.arange(width - late, width, device=device) >= torch.tensor(begin_n, device=device)[:, None]
    cache = DynamicCache()
    cache.layers = [KnownLayer(kv[i], kv[i + 1], late, new_nl) for i in range(0, len(kv), 2)]
    return cache


def preallocated_cache(
    read: Sequence[tuple[Sequence[int], Cache]], row_r: torch.Tensor, width: int, room: int
) -> object:
    """Return the cache of R rows, of which row r continues prompt `row_r[r]`, with room for `room` tokens each.

    `read` holds the prompts that were read together with their cache; all are aligned at slot `width`.
    """
    cache = DynamicCache()
    cache.layers = [PreallocatedLayer(width + room) for _ in read[0][1].layers]
    for number, layer in enumerate(cache.layers):
        keys, values = (_aligned(read, number, name, width) for name in ("keys", "values"))
        layer.update(keys[row_r], values[row_r])
    return cache


def _aligned(read: Sequence[tuple[Sequence[int], Cache]], number: int, name: str, width: int) -> torch.Tensor:
    """Return the prompts' keys or values of one layer aligned at their ends, [N, heads, width, d], with zeros before
    them.
    """
    count = sum(len(index) for index, _ in read)
    first = getattr(read[0][1].layers[number], name)
    out = first.new_zeros(count, first.shape[1], width, first.shape[3])
    for index, cache in read:
        held = getattr(cache.layers[number], name)
        out[torch.as_tensor(index, device=out.device), :, width - held.shape[2] :] = held
    return out
