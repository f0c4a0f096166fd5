"""Decoding through a transformers model's own forward pass: correct for every architecture.

Ordinary keys and values are preallocated; windows and recurrent states stay in the model's own cache. If rows are to be
continued later, windows are also held as ordinary keys and values, and the mask restricts attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from grouprl.core.spans import spanned
from grouprl.policy.language.model_checks import STATES, accepts, state_name
from grouprl.policy.lora import base_model
from grouprl.rollout.local.decoder_protocol import reading_order

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

    from grouprl.rollout.local.turn_cache import Past


class TransformersDecoder:
    """One forward pass of the model per token; prompts are padded on the left, each distinct one is read once."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, core = model, base_model(model)
        self._cache: Cache = None
        self.past: Past | None = None
        """Cached beginnings of the prompts (`grouprl.rollout.local.turn_cache.Past`); None if nothing is to be
        cached.
        """
        self._names_positions = accepts(core, "position_ids")
        self._cache_name = state_name(core) or STATES[0]
        self._recurrent = not self._names_positions and not hasattr(core.config, "num_attention_heads")
        self._last_only = {"logits_to_keep": 1} if accepts(core, "logits_to_keep") else {}

    @property
    def keeps(self) -> bool:
        """True if keys and values can be kept and continued from; False if a layer has another kind of state."""
        from grouprl.rollout.local.preallocated_cache import empty_cache

        return empty_cache(self.model, windows=True) is not None

    @torch.inference_mode()
    @spanned("prefill")
    def start(self, prompts: Sequence[Sequence[int]], prompt_r: Sequence[int], room: int) -> torch.Tensor:
        """Read the prompts; if the cache is ordinary, in batches of similar length.

        Beginnings of prompts that `past` holds are not read again.
        """
        from grouprl.rollout.local.preallocated_cache import empty_cache, preallocated_cache

        device, count, windows = self.model.device, len(prompts), self.past is not None
        row_r = torch.as_tensor(prompt_r, device=device)
        length_n = torch.tensor([len(p) for p in prompts], device=device)
        self.width = width = int(length_n.max())
        ordinary = empty_cache(self.model, windows) is not None
        known = [0] * count if self.past is None else self.past.known(prompts)
        late = [len(prompt) - done for prompt, done in zip(prompts, known, strict=True)]
        batches = list(reading_order(late)) if ordinary else [list(range(count))]
        read = [
            (some, *self._read_on([prompts[i] for i in some], max(late[i] for i in some)))
            if any(known[i] for i in some)
            else (some, *self._read([prompts[i] for i in some], empty_cache(self.model, windows)))
            for some in batches
        ]
        order = torch.tensor([i for some in batches for i in some], device=device)
        logits_nv = torch.cat([logits for _, logits, _ in read])[torch.argsort(order)]
        if ordinary:
            self._cache = preallocated_cache([(some, cache) for some, _, cache in read], row_r, width, room)
        else:
            self._cache = read[0][2]
            self._cache.reorder_cache(row_r)
        self._mask = (torch.arange(width + room, device=device) >= (width - length_n)[row_r, None]).long()
        self._used, self._position = width, length_n[row_r]
        return logits_nv[row_r]

    def _read(self, prompts: Sequence[Sequence[int]], cache: object) -> tuple[torch.Tensor, Cache]:
        """Return the logits [N,V] after left-padded prompts, and the cache."""
        device, width = self.model.device, max(map(len, prompts))
        ids_nl = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
        pad_n1 = torch.tensor([[width - len(p)] for p in prompts], device=device)
        position_nl = torch.arange(width, device=device) - pad_n1
        return self._forward(ids_nl, (position_nl >= 0).long(), position_nl.clamp(min=0), cache)

    def _read_on(self, prompts: Sequence[Sequence[int]], late: int) -> tuple[torch.Tensor, Cache]:
        """Read the last `late` tokens of prompts, or fewer if more are cached; otherwise the same as `_read`."""
        from grouprl.rollout.local.preallocated_cache import known_cache

        assert self.past is not None
        device, width = self.model.device, max(map(len, prompts))
        begin_n1 = torch.tensor([[width - len(p)] for p in prompts], device=device)
        slot_l = torch.arange(width - late, width, device=device)
        ids_nl = torch.tensor([([0] * width + list(p))[-late:] for p in prompts], device=device)
        cache = known_cache(self.past, prompts, width, late, device)
        mask_nk = (torch.arange(width, device=device) >= begin_n1).long()
        return self._forward(ids_nl, mask_nk, (slot_l - begin_n1).clamp(min=0), cache)

    @torch.inference_mode()
    def written(self, index_n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the keys and values of the rows `index_n`, layer by layer, [N,kv_heads,slots,d]; prompts end at slot
        `width`.
        """
        return tuple(held[index_n] for layer in self._cache.layers for held in (layer.keys, layer.values))

    @torch.inference_mode()
    def step(self, token_r: torch.Tensor) -> torch.Tensor:
        """Append one token to each row; models without attention look at the new token alone."""
        self._used += 1
        seen = self._mask[:, self._used - 1 if self._recurrent else 0 : self._used]
        logits_rv, self._cache = self._forward(token_r[:, None], seen, self._position[:, None], self._cache)
        self._position = self._position + 1
        return logits_rv

    @torch.inference_mode()
    def keep(self, index_n: torch.Tensor) -> None:
        """Continue with the rows `index_n`."""
        self._cache.reorder_cache(index_n)
        self._mask, self._position = self._mask[index_n], self._position[index_n]

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: object
    ) -> tuple[torch.Tensor, Cache]:
        extra: dict[str, object] = dict(self._last_only)
        if self._names_positions:
            extra["position_ids"] = positions
        out = self.model(input_ids=ids, attention_mask=mask, use_cache=True, **{self._cache_name: cache}, **extra)
        return out.logits[:, -1], getattr(out, self._cache_name)
