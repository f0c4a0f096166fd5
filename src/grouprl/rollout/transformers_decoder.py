"""Decoding through a transformers model and its own cache: slower, and right for every architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..policy.engine import accepts


class TransformersDecoder:
    """One forward pass of the model per token; prompts are padded on the left, each distinct one is read once."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._cache: Any = None
        self._names_positions = accepts(model, "position_ids")
        self._last_only = {"logits_to_keep": 1} if accepts(model, "logits_to_keep") else {}

    @torch.no_grad()
    def start(self, prompts: Sequence[Sequence[int]], prompt_r: Sequence[int], room: int) -> torch.Tensor:
        """Read the prompts; `room` is not needed, the cache grows."""
        device = self.model.device
        width = max(map(len, prompts))
        ids_nl = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
        real_n = torch.tensor([len(p) for p in prompts], device=device)
        mask_nl = (torch.arange(width, device=device) >= width - real_n[:, None]).long()
        positions_nl = (mask_nl.cumsum(-1) - 1).clamp(min=0)
        row_r = torch.as_tensor(prompt_r, device=device)
        self._cache = None
        logits_nv = self._forward(ids_nl, mask_nl, positions_nl)
        self._cache.reorder_cache(row_r)
        self._mask, self._position = mask_nl[row_r], real_n[row_r]
        return logits_nv[row_r]

    @torch.no_grad()
    def step(self, token_r: torch.Tensor) -> torch.Tensor:
        """Append one token to each row."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(token_r), 1)], dim=1)
        logits_rv = self._forward(token_r[:, None], self._mask, self._position[:, None])
        self._position = self._position + 1
        return logits_rv

    def keep(self, index_n: torch.Tensor) -> None:
        """Go on with the rows `index_n`."""
        self._cache.reorder_cache(index_n)
        self._mask, self._position = self._mask[index_n], self._position[index_n]

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        extra: dict[str, Any] = dict(self._last_only)
        if self._names_positions:
            extra["position_ids"] = positions
        out = self.model(input_ids=ids, attention_mask=mask, past_key_values=self._cache, use_cache=True, **extra)
        self._cache = out.past_key_values
        return out.logits[:, -1]
