"""Decoding Llama-like models with a preallocated cache: each distinct prompt is read once, finished rows leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..policy.lean import LeanModel, add_linear, linear
from ..policy.lean_ops import rms_norm, turned
from .cache import Cache, ColumnCache, RowCache, columns_pay


class LeanDecoder:
    """The lean forward, one token at a time; a snapshot of the weights at its construction."""

    def __init__(self, lean: LeanModel) -> None:
        self.lean = lean
        with torch.no_grad():
            self._qkv = [lean.qkv(layer) for layer in lean.layers]

    @torch.no_grad()
    def start(self, prompts: Sequence[Sequence[int]], prompt_r: Sequence[int], room: int) -> torch.Tensor:
        """Read the prompts and lay their keys and values out for every row."""
        lean, device = self.lean, self.lean.device
        width = max(map(len, prompts))
        ids_nl = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
        pad_n = torch.tensor([width - len(p) for p in prompts], device=device)
        row_r = torch.as_tensor(prompt_r, device=device)
        real_nl = torch.arange(width, device=device) >= pad_n[:, None]
        kind = ColumnCache if columns_pay(lean, len(row_r), width + room) else RowCache
        self._caches: list[Cache] = [
            kind(len(row_r), lean.heads, lean.kv_heads, width + room, lean.size, real_nl[row_r], lean.dtype)
            for _ in lean.layers
        ]
        last_nd = self._read(ids_nl, real_nl, row_r)
        self._turn_rt = lean.turns((width - pad_n)[row_r, None] + torch.arange(room, device=device))
        self._step = 0
        return self._logits(last_nd)[row_r]

    def _read(self, ids_nl: torch.Tensor, real_nl: torch.Tensor, row_r: torch.Tensor) -> torch.Tensor:
        """Run the left-padded prompts, fill the caches, return each prompt's last state [N, hidden]."""
        lean, (count, width) = self.lean, ids_nl.shape
        turn = lean.turns((real_nl.cumsum(-1) - 1).clamp(min=0)).unsqueeze(2)
        causal = torch.ones(width, width, dtype=torch.bool, device=ids_nl.device).tril()
        seen = (causal & real_nl[:, None]) | torch.eye(width, dtype=torch.bool, device=ids_nl.device)
        x = lean.core.model.embed_tokens(ids_nl).flatten(0, 1)
        for layer, qkv, cache in zip(lean.layers, self._qkv, self._caches, strict=True):
            q, k, v = self._heads(layer, x, qkv, turn.flatten(0, 1))
            q, k, v = (t.view(count, width, -1, lean.size).transpose(1, 2) for t in (q, k, v))
            cache.fill(k, v, row_r)
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=seen[:, None], enable_gqa=lean.heads > lean.kv_heads
            )
            x = self._rest(layer, x, out.transpose(1, 2).reshape(count * width, -1))
        return x.view(count, width, -1)[:, -1]

    @torch.no_grad()
    def step(self, token_r: torch.Tensor) -> torch.Tensor:
        """Append one token to each row."""
        lean = self.lean
        x = lean.core.model.embed_tokens(token_r)
        turn_r = self._turn_rt[:, self._step, None]
        self._step += 1
        for layer, qkv, cache in zip(lean.layers, self._qkv, self._caches, strict=True):
            q, k, v = self._heads(layer, x, qkv, turn_r)
            cache.append(k, v)
            x = self._rest(layer, x, cache.attend(q * (1 / math.sqrt(lean.size))))
        return self._logits(x)

    def keep(self, index_n: torch.Tensor) -> None:
        """Go on with the rows `index_n`."""
        self._turn_rt = self._turn_rt[index_n]
        for cache in self._caches:
            cache.keep(index_n)

    def _heads(
        self, layer: Any, x: torch.Tensor, qkv: tuple[torch.Tensor, torch.Tensor | None], turn: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q [S,heads,d], k and v [S,kv_heads,d] of the tokens x [S,hidden]."""
        lean = self.lean
        normed = rms_norm(x, layer.input_layernorm.weight, lean.eps)
        y = lean.normed_heads(layer, F.linear(normed, *qkv).view(len(x), -1, lean.size))
        turning = lean.heads + lean.kv_heads
        qk = turned(y[:, :turning], turn)
        return qk[:, : lean.heads], qk[:, lean.heads :], y[:, turning:]

    def _rest(self, layer: Any, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        x = add_linear(x, attended, layer.self_attn.o_proj)
        return self.lean.mlp(layer, x)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        head = self.lean.core.get_output_embeddings()
        return linear(rms_norm(x, self.lean.core.model.norm.weight, self.lean.eps), head)
