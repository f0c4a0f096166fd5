"""Keys and values of one layer while R rows are written, preallocated, in two layouts.

Both hold `slots` places per row, prompts aligned at their ends, so that all rows write into the same slot.
"""

from __future__ import annotations

from typing import Protocol

import torch

from ..policy.lean import LeanModel

COLUMN_ELEMENTS = 1_000_000
"""Keys of a layer up to which the column layout is faster: its intermediate products then stay in a CPU's cache."""


class Cache(Protocol):
    """What the decoder asks of a layout."""

    def fill(self, k: torch.Tensor, v: torch.Tensor, row_r: torch.Tensor) -> None:
        """Store the prompts' keys and values [N,kv_heads,L,d]; row r has prompt row_r[r]."""
        ...

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store one token's keys and values [R,kv_heads,d]."""
        ...

    def attend(self, q: torch.Tensor) -> torch.Tensor:
        """Return the attention output [R, heads * d] of scaled queries [R,heads,d]."""
        ...

    def keep(self, index_n: torch.Tensor) -> None:
        """Go on with the rows `index_n`."""
        ...


def columns_pay(lean: LeanModel, rows: int, slots: int) -> bool:
    """Tell whether the column layout is the faster one: on a CPU, for short sequences of narrow heads."""
    elements = rows * slots * lean.kv_heads * lean.size
    return lean.device.type == "cpu" and lean.heads == lean.kv_heads and elements <= COLUMN_ELEMENTS


class RowCache:
    """[R, kv_heads, slots, d]: one small matrix per row and head; the layout of every other cache."""

    def __init__(
        self, rows: int, heads: int, kv_heads: int, slots: int, size: int, real_rl: torch.Tensor, dtype: torch.dtype
    ) -> None:
        self.heads, self.rows, self.used = heads, rows, 0
        self.k = torch.empty(rows, kv_heads, slots, size, dtype=dtype, device=real_rl.device)
        self.v = torch.empty_like(self.k)
        self.bias = None if real_rl.all() else _bias(real_rl, slots, dtype)

    def fill(self, k: torch.Tensor, v: torch.Tensor, row_r: torch.Tensor) -> None:
        """Store the prompts."""
        self.used = k.shape[2]
        self.k[:, :, : self.used], self.v[:, :, : self.used] = k[row_r], v[row_r]

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store one token per row."""
        self.k[: self.rows, :, self.used], self.v[: self.rows, :, self.used] = k, v
        self.used += 1

    def attend(self, q: torch.Tensor) -> torch.Tensor:
        """Two batched products; the fused kernel on a GPU."""
        k, v = self.k[: self.rows, :, : self.used], self.v[: self.rows, :, : self.used]
        bias = None if self.bias is None else self.bias[: self.rows, None, None, : self.used]
        if q.device.type != "cpu":
            shared = self.heads > k.shape[1]
            return torch.nn.functional.scaled_dot_product_attention(
                q[:, :, None], k, v, attn_mask=bias, scale=1.0, enable_gqa=shared
            ).reshape(self.rows, -1)
        scores = q.reshape(self.rows, k.shape[1], -1, q.shape[-1]) @ k.transpose(2, 3)
        weights = torch.softmax(scores if bias is None else scores + bias, dim=-1)
        return (weights @ v).reshape(self.rows, -1)

    def keep(self, index_n: torch.Tensor) -> None:
        """Move the rows to the front."""
        self.rows = len(index_n)
        for held in (self.k, self.v):
            held[: self.rows, :, : self.used] = held[index_n, :, : self.used]
        self.bias = None if self.bias is None else self.bias[index_n]


class ColumnCache:
    """[heads, d, slots, R]: rows lie side by side, so attention is a few long elementwise operations."""

    def __init__(
        self, rows: int, heads: int, kv_heads: int, slots: int, size: int, real_rl: torch.Tensor, dtype: torch.dtype
    ) -> None:
        self.rows, self.used = rows, 0
        self.k = torch.empty(kv_heads, size, slots, rows, dtype=dtype, device=real_rl.device)
        self.v = torch.empty_like(self.k)
        self.room = torch.empty(self.k.numel(), dtype=dtype, device=real_rl.device)
        self.bias = None if real_rl.all() else _bias(real_rl, slots, dtype).T.contiguous()

    def fill(self, k: torch.Tensor, v: torch.Tensor, row_r: torch.Tensor) -> None:
        """Store the prompts."""
        self.used = k.shape[2]
        self.k[:, :, : self.used] = _columns(k.permute(1, 3, 2, 0), row_r)
        self.v[:, :, : self.used] = _columns(v.permute(1, 3, 2, 0), row_r)

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store one token per row."""
        self.k[:, :, self.used, : self.rows] = k.permute(1, 2, 0)
        self.v[:, :, self.used, : self.rows] = v.permute(1, 2, 0)
        self.used += 1

    def attend(self, q: torch.Tensor) -> torch.Tensor:
        """Sums over dimensions and slots of elementwise products."""
        k, v = self.k[:, :, : self.used, : self.rows], self.v[:, :, : self.used, : self.rows]
        queries = q.permute(1, 2, 0).contiguous()[:, :, None]
        scores = torch.mul(queries, k, out=self._product(k.shape)).sum(1)
        if self.bias is not None:
            scores += self.bias[: self.used, : self.rows]
        weights = torch.softmax(scores, dim=1)
        out = torch.mul(weights[:, None], v, out=self._product(k.shape)).sum(2)
        return out.permute(2, 0, 1).reshape(self.rows, -1)

    def _product(self, shape: torch.Size) -> torch.Tensor:
        """Return room for an intermediate product; taking it anew in each step costs more than filling it."""
        return self.room[: shape.numel()].view(shape)

    def keep(self, index_n: torch.Tensor) -> None:
        """Move the columns to the front."""
        self.rows = len(index_n)
        for held in (self.k, self.v):
            held[:, :, : self.used, : self.rows] = _columns(held[:, :, : self.used], index_n)
        self.bias = None if self.bias is None else self.bias[:, index_n]


def _columns(x_hdtr: torch.Tensor, index_n: torch.Tensor) -> torch.Tensor:
    """Select along the last axis; `gather` does it several times faster than `index_select`."""
    return x_hdtr.gather(3, index_n.expand(*x_hdtr.shape[:3], len(index_n)))


def _bias(real_rl: torch.Tensor, slots: int, dtype: torch.dtype) -> torch.Tensor:
    """0 where a slot holds a token or will, -inf where it pads the prompt, [R, slots]."""
    bias = torch.zeros(len(real_rl), slots, dtype=dtype, device=real_rl.device)
    bias[:, : real_rl.shape[1]].masked_fill_(~real_rl, -torch.inf)
    return bias
