"""Decoding Llama-like models with a preallocated cache: distinct prompts are read once, finished rows are removed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from grouprl.core.spans import spanned
from grouprl.policy.fast_forward.forward import FEWER_ROWS, LeanModel
from grouprl.policy.fast_forward.gradient_ops import turned
from grouprl.policy.fast_forward.merged_weights import LayerWeights, decoding_weights
from grouprl.policy.fused_attention import fused_attention
from grouprl.rollout.local.decoder_protocol import reading_order
from grouprl.rollout.local.key_value_cache import Cache, CacheLayout, RowCache, SlotCache, sharing_pays, slots_pay
from grouprl.rollout.local.turn_cache import Past


class LeanDecoder:
    """The lean forward pass, one token at a time, with the weights as they are at construction."""

    def __init__(self, lean: LeanModel, past: Past | None = None) -> None:
        self.lean, self.weights, self.past = lean, decoding_weights(lean), past

    @torch.inference_mode()
    @spanned("prefill")
    def start(
        self, prompts: Sequence[Sequence[int]], prompt_r: Sequence[int], room: int, rows: int | None = None
    ) -> torch.Tensor:
        """Read the prompts, in batches of similar length, and make room for every row.

        `rows` is the largest number of rows if they fork; None: no more than now. Beginnings of prompts that `past`
        holds are not read again.
        """
        lean, device = self.lean, self.lean.device
        length_n = torch.tensor([len(p) for p in prompts], device=device)
        self.width, self._room = int(length_n.max()), room
        width = self.width
        row_r = torch.as_tensor(prompt_r, device=device)
        real_nl = torch.arange(width, device=device) >= width - length_n[:, None]
        most = rows or len(row_r)
        self.layout = CacheLayout(real_nl, row_r, lean.dtype, sharing_pays(lean, most, len(prompts), width))
        # Zeros, since slots of padding take part in products: a weight of 0 times what was in memory may be NaN.
        kv = torch.zeros(len(lean.layers), 2, len(prompts), lean.kv_heads, width, lean.size, dtype=lean.dtype).to(
            device
        )
        last_nd = torch.empty(len(prompts), lean.core.config.hidden_size, dtype=lean.dtype, device=device)
        known = [0] * len(prompts) if self.past is None else self.past.known(prompts)
        if self.past is not None:
            self.past.fill((kv,), prompts)
        for some in reading_order([len(p) - done for p, done in zip(prompts, known, strict=True)]):
            index = torch.tensor(some, device=device)
            fresh = not any(known[i] for i in some)
            rest = [prompts[i][known[i] :] for i in some]
            last_nd[index] = self._read(rest, index, kv) if fresh else self._read_on(rest, index, kv, length_n[index])
        kind = SlotCache if slots_pay(lean, most) else RowCache
        self._caches: list[Cache] = [kind(lean, self.layout, len(row_r), most, room) for _ in lean.layers]
        for cache, (k, v) in zip(self._caches, kv, strict=True):
            cache.fill(k, v)
        self._turn_l = lean.turns(torch.arange(width + room, device=device)).unsqueeze(1)
        self._table_vn = self._first_projection(most * room)
        self._position: int | torch.Tensor = width if bool((length_n == width).all()) else length_n[row_r]
        """Position of the next token: one number if it is the same for all rows."""
        return self.weights.head(self.weights.norm(last_nd))[row_r]

    def _read(self, prompts: Sequence[Sequence[int]], index: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Run left-padded prompts and store their keys and values in `kv`; return each prompt's last state [N,
        hidden].
        """
        lean, device, count, width = self.lean, self.lean.device, len(prompts), max(map(len, prompts))
        ids_nl = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
        pad_n = torch.tensor([width - len(p) for p in prompts], device=device)
        position_nl = torch.arange(width, device=device) - pad_n[:, None]
        turn = lean.turns(position_nl.clamp(min=0).flatten()).unsqueeze(1)
        seen = None if not pad_n.any() else _seen(position_nl)
        x = self.weights.embeddings[ids_nl.flatten()]
        for number, layer in enumerate(self.weights.layers):
            heads = self._heads(layer, x, turn).view(count, width, -1, lean.size).transpose(1, 2)
            q, k, v = heads.split([lean.heads, lean.kv_heads, lean.kv_heads], dim=1)
            kv[number, 0, index, :, -width:], kv[number, 1, index, :, -width:] = k, v
            out = fused_attention(q, k, v, mask=seen, causal=seen is None)
            x = self._rest(layer, x, out.transpose(1, 2).reshape(count * width, -1))
        return x.view(count, width, -1)[:, -1]

    def _read_on(
        self, rests: Sequence[Sequence[int]], index: torch.Tensor, kv: torch.Tensor, length_n: torch.Tensor
    ) -> torch.Tensor:
        """Run the rest of prompts whose beginnings are already in `kv`; otherwise the same as `_read`."""
        lean, device, count, width = self.lean, self.lean.device, len(rests), kv.shape[4]
        late = max(map(len, rests))
        ids_nl = torch.tensor([[0] * (late - len(p)) + list(p) for p in rests], device=device)
        slot_l, key_k = torch.arange(width - late, width, device=device), torch.arange(width, device=device)
        begin_n = width - length_n
        real_nl = slot_l >= width - torch.tensor([len(p) for p in rests], device=device)[:, None]
        turn = lean.turns((slot_l - begin_n[:, None]).clamp(min=0).flatten()).unsqueeze(1)
        held_nk = key_k >= begin_n[:, None]
        seen = ((key_k <= slot_l[:, None]) & held_nk[:, None]) | (key_k == slot_l[:, None])
        x = self.weights.embeddings[ids_nl.flatten()]
        for number, layer in enumerate(self.weights.layers):
            heads = self._heads(layer, x, turn).view(count, late, -1, lean.size).transpose(1, 2)
            q, *new = heads.split([lean.heads, lean.kv_heads, lean.kv_heads], dim=1)
            for held, each in zip(kv[number], new, strict=True):
                held[index, :, -late:] = torch.where(real_nl[:, None, :, None], each, held[index, :, -late:])
            k, v = kv[number][:, index]
            out = fused_attention(q, k, v, mask=seen[:, None])
            x = self._rest(layer, x, out.transpose(1, 2).reshape(count * late, -1))
        return x.view(count, late, -1)[:, -1]

    @torch.inference_mode()
    def written(self, index_n: torch.Tensor) -> tuple[torch.Tensor]:
        """Return the keys and values of the rows `index_n`, [layers,2,N,kv_heads,slots,d]; prompts end at slot
        `width`.
        """
        return (torch.stack([cache.written(index_n) for cache in self._caches]),)

    @torch.inference_mode()
    def step(self, token_r: torch.Tensor) -> torch.Tensor:
        """Append one token to each row; return the logits of the next, [R,V]."""
        heads = self.lean.heads
        x, turn_r = self.weights.embeddings.index_select(0, token_r), self._turn_l[self._position]
        self._position = self._position + 1
        for number, (layer, cache) in enumerate(zip(self.weights.layers, self._caches, strict=True)):
            known = self._table_vn.index_select(0, token_r) if number == 0 and self._table_vn is not None else None
            qkv = self._heads(layer, x, turn_r, known)
            cache.append(qkv[:, heads:])
            x = self._rest(layer, x, cache.attend(qkv[:, :heads]))
        return self.weights.head(self.weights.norm(x))

    @torch.inference_mode()
    def keep(self, index_n: torch.Tensor, rows: int | None = None) -> None:
        """Continue with the rows `index_n`; `rows` is the largest number of rows if they fork, None: no more than
        these.
        """
        if isinstance(self._position, torch.Tensor):
            self._position = self._position[index_n]
        most = rows or len(index_n)
        if isinstance(self._caches[0], SlotCache) and not slots_pay(self.lean, most):
            whole = [cache.written(index_n) for cache in self._caches]
            self.layout = self.layout.apart(index_n)
            self._caches = [RowCache.of(self.lean, self.layout, kv, most, self._room) for kv in whole]
            return
        needed = self.layout.keep(index_n)
        for cache in self._caches:
            cache.keep(index_n, needed)

    @torch.inference_mode()
    def fork(self, parent_n: torch.Tensor) -> None:
        """Append a copy of each of the rows `parent_n`, which continues as that row does."""
        if isinstance(self._position, torch.Tensor):
            self._position = torch.cat([self._position, self._position[parent_n]])
        self.layout.fork(parent_n)
        for cache in self._caches:
            cache.fork(parent_n)

    def _first_projection(self, tokens: int) -> torch.Tensor | None:
        """Project the whole vocabulary once if it is much smaller than the number of tokens to come: the first layer
        sees only embeddings.
        """
        embeddings_vd, first = self.weights.embeddings, self.weights.layers[0]
        pays = len(embeddings_vd) * FEWER_ROWS <= tokens
        return first.qkv(first.attention_norm(embeddings_vd)) if pays else None

    def _heads(
        self, layer: LayerWeights, x: torch.Tensor, turn: torch.Tensor, known: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return scaled queries, keys and values of the tokens x [S,hidden], [S, heads + 2 kv_heads, d].

        `known` is the projection if it has been computed already; it is overwritten.
        """
        qkv = (layer.qkv(layer.attention_norm(x)) if known is None else known).view(len(x), -1, self.lean.size)
        queries, turning = self.lean.heads, self.lean.heads + self.lean.kv_heads
        if layer.q_norm is not None and layer.k_norm is not None:
            qkv[:, :queries] = layer.q_norm(qkv[:, :queries])
            qkv[:, queries:turning] = layer.k_norm(qkv[:, queries:turning])
        if qkv.dtype in (torch.float32, torch.float64):
            torch.view_as_complex(qkv[:, :turning].unflatten(-1, (-1, 2))).mul_(turn)
        else:
            qkv[:, :turning] = turned(qkv[:, :turning], turn)
        return qkv

    def _rest(self, layer: LayerWeights, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Add the attention's output and the feed-forward block (Shazeer 2020, SwiGLU) to x, in place."""
        x = layer.output.add_to(x, attended)
        gate, up = layer.gate_up(layer.feed_norm(x)).chunk(2, dim=-1)
        return layer.down.add_to(x, F.silu(gate, inplace=True).mul_(up))


def _seen(position_nl: torch.Tensor) -> torch.Tensor:
    """Return a mask [N,1,L,L] of the keys that each query may see: real ones up to its own; padding sees itself."""
    width = position_nl.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=position_nl.device).tril()
    itself = torch.eye(width, dtype=torch.bool, device=position_nl.device)
    return ((causal & (position_nl >= 0)[:, None]) | itself)[:, None]
