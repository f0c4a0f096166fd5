"""Keys and values of one layer while R rows are decoded, preallocated, in two layouts.

A prompt that many rows begin with is stored once and attended to by all its rows in one product (`SharedPrompts`).
The tokens that rows add are in `slots` places per row; so are prompts that are not shared, aligned at their ends, so
that all rows write into the same slot.

Why two layouts: on a CPU one token per row makes products of a single query, too small for a matrix product to reach
its speed. With many rows (`SlotCache`) the rows themselves become the long axis of elementwise products, which stream
through memory; with few rows, or heads that share keys, `RowCache` has one product per row and head. Why preallocated:
growing a cache token by token copies it each time, quadratic in the length.
"""

from __future__ import annotations

import copy
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from grouprl.core.spans import spanned
from grouprl.policy.fast_forward.forward import LeanModel
from grouprl.policy.fused_attention import fused_attention

CHUNK = 2**18
"""Numbers of an elementwise product computed at a time: they should stay in the second-level cache of a core."""
SHARED_ROWS = 4
"""Rows per prompt from which prompts are stored once, if that saves enough (`SHARED_NUMBERS`)."""
SHARED_NUMBERS = 100_000
"""Key elements per layer that storing prompts once has to save: it needs a few more operations per token."""
SLOT_ROWS = 32
"""Number of rows from which the slot layout is used; with fewer rows, one small product per row and head needs fewer
operations.
"""


class CacheLayout:
    """Places of the rows' prompts, the same for all layers.

    Attributes:
        width: slots of the longest prompt.
        shared: whether each prompt is stored once.
        bias_rl: 0 where a prompt's slot holds a token, -inf where it pads, [R or N, width]; None without padding.
    """

    def __init__(self, real_nl: torch.Tensor, row_r: torch.Tensor, dtype: torch.dtype, shared: bool) -> None:
        self.width, self.shared, self.row_r = real_nl.shape[1], shared, row_r
        self.prompts = len(real_nl)
        padding = torch.zeros(real_nl.shape, dtype=dtype, device=real_nl.device).masked_fill_(~real_nl, -torch.inf)
        self.bias_rl = None if real_nl.all() else padding if shared else padding[row_r]
        self._place()

    def keep(self, index_n: torch.Tensor) -> torch.Tensor | None:
        """Continue with the rows `index_n`; return which shared prompts are still needed, None if all are."""
        self.row_r = self.row_r[index_n]
        if not self.shared:
            self.bias_rl = None if self.bias_rl is None else self.bias_rl[index_n]
            return None
        needed, self.row_r = torch.unique(self.row_r, return_inverse=True)
        gone = len(needed) < self.prompts
        if gone:
            self.prompts = len(needed)
            self.bias_rl = None if self.bias_rl is None else self.bias_rl[needed]
        self._place()
        return needed if gone else None

    def apart(self, index_n: torch.Tensor) -> CacheLayout:
        """Return the layout of the rows `index_n` with their prompts among their own slots."""
        of = self.row_r[index_n] if self.shared else index_n
        made = copy.copy(self)
        made.shared, made.row_r = False, torch.arange(len(index_n), device=index_n.device)
        made.bias_rl = None if self.bias_rl is None else self.bias_rl[of]
        return made

    def fork(self, parent_n: torch.Tensor) -> None:
        """Add rows that have the prompts of the rows `parent_n`."""
        self.row_r = torch.cat([self.row_r, self.row_r[parent_n]])
        if self.bias_rl is not None and not self.shared:
            self.bias_rl = torch.cat([self.bias_rl, self.bias_rl[parent_n]])
        self._place()

    # A product over [prompt, its rows] needs a rectangle, but prompts lose rows at different times. Rows therefore get
    # places in a grid [prompts, most rows of any prompt], and the empty places are computed in vain. That is cheaper
    # than a product per prompt until most rows have left; `keep` drops prompts without rows.
    def _place(self) -> None:
        """Give each row a place [prompt, number]; `at_r` is None if rows are already in this order."""
        if not self.shared:
            return
        row_r = self.row_r.numpy()  # for small arrays on a CPU numpy takes a tenth of torch's time
        count_n = np.bincount(row_r, minlength=self.prompts)
        self.group = int(count_n.max())
        # In the smallest type: up to 16 bits numpy sorts by radix.
        order = np.argsort(row_r.astype(np.min_scalar_type(self.prompts)), kind="stable")
        first_n = np.cumsum(count_n) - count_n
        at_r = np.empty_like(row_r)
        at_r[order] = np.arange(len(order)) + (np.arange(self.prompts) * self.group - first_n)[row_r[order]]
        in_order = len(at_r) == self.prompts * self.group and bool((at_r == np.arange(len(at_r))).all())
        self.at_r = None if in_order else torch.from_numpy(at_r)

    def grouped(self, x_rhl: torch.Tensor) -> torch.Tensor:
        """Arrange rows [R, kv_heads, s, …] by prompt, [N, kv_heads, group * s, …]."""
        places = (self.prompts * self.group, *x_rhl.shape[1:])
        full = x_rhl if self.at_r is None else x_rhl.new_zeros(places).index_copy_(0, self.at_r, x_rhl)
        _, heads, each, size = x_rhl.shape
        return full.reshape(self.prompts, self.group, heads, each, size).transpose(1, 2).flatten(2, 3)

    def rows(self, x_nhgl: torch.Tensor, each: int) -> torch.Tensor:
        """Undo `grouped`."""
        count, heads, _, size = x_nhgl.shape
        split = x_nhgl.view(count, heads, self.group, each, size).transpose(1, 2)
        flat = split.reshape(count * self.group, heads, each, size)
        return flat if self.at_r is None else flat[self.at_r]


class Cache(Protocol):
    """The interface of a cache layout for the decoder."""

    def fill(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the prompts' keys and values [N,kv_heads,L,d]."""
        ...

    def append(self, kv: torch.Tensor) -> None:
        """Store one token's keys and values [R, 2 * kv_heads, d]."""
        ...

    def attend(self, q: torch.Tensor) -> torch.Tensor:
        """Return the attention output [R, heads * d] of scaled queries [R,heads,d]."""
        ...

    def keep(self, index_n: torch.Tensor, needed: torch.Tensor | None) -> None:
        """Continue with the rows `index_n` and the shared prompts `needed` (None: all)."""
        ...

    def fork(self, parent_n: torch.Tensor) -> None:
        """Add copies of the rows `parent_n`; there must be room for them."""
        ...

    def written(self, index_n: torch.Tensor) -> torch.Tensor:
        """Return keys and values of the rows `index_n`, prompts first, [2,N,kv_heads,slots,d]."""
        ...


def slots_pay(lean: LeanModel, rows: int) -> bool:
    """Return whether the slot layout is faster: on a CPU, for many rows, if each query head has its own keys."""
    return lean.device.type == "cpu" and lean.heads == lean.kv_heads and rows >= SLOT_ROWS


def sharing_pays(lean: LeanModel, rows: int, prompts: int, width: int) -> bool:
    """Return whether to store prompts of `width` tokens once, because that saves enough keys."""
    saved = (rows - prompts) * width * lean.kv_heads * lean.size
    return lean.device.type == "cpu" and rows >= SHARED_ROWS * prompts and saved >= SHARED_NUMBERS


class _Prompts:
    """Keys and values of the shared prompts of one layer."""

    def __init__(self, layout: CacheLayout, k: torch.Tensor, v: torch.Tensor) -> None:
        self.layout, self.k, self.v = layout, k, v

    def scores(self, q: torch.Tensor) -> torch.Tensor:
        """Return the scores of queries [R,kv_heads,s,d] with their prompts' keys, [R,kv_heads,s,width]."""
        scores = self.layout.grouped(q) @ self.k.transpose(2, 3)
        if self.layout.bias_rl is not None:
            scores += self.layout.bias_rl[:, None, None]
        return self.layout.rows(scores, q.shape[2])

    def values(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the sums of values by weights [R,kv_heads,s,width], as [R,kv_heads,s,d]."""
        return self.layout.rows(self.layout.grouped(weights) @ self.v, weights.shape[2])

    def keep(self, needed: torch.Tensor) -> None:
        """Continue with the prompts `needed`."""
        self.k, self.v = self.k[needed], self.v[needed]

    def of(self, index_n: torch.Tensor) -> torch.Tensor:
        """Return the keys and values of the prompts of the rows `index_n`, [2,N,kv_heads,width,d]."""
        which = self.layout.row_r[index_n]
        return torch.stack([self.k[which], self.v[which]])


class RowCache:
    """A cache [R, kv_heads, slots, d] with one small matrix per row and head."""

    def __init__(self, lean: LeanModel, layout: CacheLayout, rows: int, most: int, room: int) -> None:
        self.layout, self.rows, self.used = layout, rows, 0
        slots = room if layout.shared else layout.width + room
        self.kv = torch.empty(2, most, lean.kv_heads, slots, lean.size, dtype=lean.dtype, device=lean.device)
        self.prompts: _Prompts | None = None

    @classmethod
    def of(cls, lean: LeanModel, layout: CacheLayout, kv: torch.Tensor, most: int, room: int) -> RowCache:
        """Return a cache filled with the keys and values of rows, [2,R,kv_heads,slots,d], prompts first."""
        made = cls(lean, layout, kv.shape[1], most, room)
        made.used = kv.shape[3]
        made.kv[:, : made.rows, :, : made.used] = kv
        return made

    def fill(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the prompts."""
        if self.layout.shared:
            self.prompts = _Prompts(self.layout, k, v)
        else:
            self.used = k.shape[2]
            for held, each in zip(self.kv, (k, v), strict=True):
                held[: self.rows, :, : self.used] = each[self.layout.row_r]

    @spanned("attention")
    def append(self, kv: torch.Tensor) -> None:
        """Store one token per row."""
        self.kv[:, : self.rows, :, self.used] = kv.unflatten(1, (2, -1)).transpose(0, 1)
        self.used += 1

    @spanned("attention")
    def attend(self, q: torch.Tensor) -> torch.Tensor:
        """Attend by two batched products, or on a GPU by the fused kernel."""
        k, v = self.kv[:, : self.rows, :, : self.used]
        bias = None if self.layout.shared else _behind(self.layout.bias_rl, self.used)
        grouped = q.reshape(self.rows, k.shape[1], -1, q.shape[-1])
        if q.device.type != "cpu":
            mask = None if bias is None else bias[:, None, None]
            return fused_attention(grouped, k, v, mask=mask).reshape(self.rows, -1)
        scores = grouped @ k.transpose(2, 3)
        if self.prompts is not None:
            return self._with_prompts(self.prompts, grouped, scores, v)
        weights = torch.softmax(scores if bias is None else scores + bias[:, None, None], dim=-1)
        return (weights @ v).reshape(self.rows, -1)

    def _with_prompts(
        self, prompts: _Prompts, grouped: torch.Tensor, scores: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        # One softmax over both parts: normalising each alone and mixing them would round differently from rows that
        # hold their prompts themselves.
        weights = torch.softmax(torch.cat([prompts.scores(grouped), scores], dim=-1), dim=-1)
        out = prompts.values(weights[..., : self.layout.width])
        return out.add_(weights[..., self.layout.width :] @ v).reshape(self.rows, -1)

    @spanned("attention")
    def keep(self, index_n: torch.Tensor, needed: torch.Tensor | None) -> None:
        """Move the rows to the front."""
        self.rows = len(index_n)
        # The right side is a copy, so that rows which move to the front do not overwrite those still to be moved.
        self.kv[:, : self.rows, :, : self.used] = self.kv[:, index_n, :, : self.used]
        if self.prompts is not None and needed is not None:
            self.prompts.keep(needed)

    @spanned("attention")
    def fork(self, parent_n: torch.Tensor) -> None:
        """Append copies of rows after the last one."""
        before, self.rows = self.rows, self.rows + len(parent_n)
        self.kv[:, before : self.rows, :, : self.used] = self.kv[:, parent_n, :, : self.used]

    def written(self, index_n: torch.Tensor) -> torch.Tensor:
        """Return the shared prompts followed by the rows' own slots, [2,N,kv_heads,slots,d]."""
        own = self.kv[:, index_n, :, : self.used]
        return own if self.prompts is None else torch.cat([self.prompts.of(index_n), own], dim=3)


class SlotCache:
    """A cache [slots, R, heads, d]: all rows of a slot are contiguous, and attention is a few long elementwise
    operations.
    """

    def __init__(self, lean: LeanModel, layout: CacheLayout, rows: int, most: int, room: int) -> None:
        self.layout, self.rows, self.used = layout, rows, 0
        slots = room if layout.shared else layout.width + room
        self.k = torch.empty(slots, most, lean.heads, lean.size, dtype=lean.dtype, device=lean.device)
        self.v = torch.empty_like(self.k)
        self.prompts: _Prompts | None = None

    def fill(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the prompts."""
        if self.layout.shared:
            self.prompts = _Prompts(self.layout, k, v)
        else:
            self.used = k.shape[2]
            for held, each in ((self.k, k), (self.v, v)):
                held[: self.used, : self.rows] = each.permute(2, 0, 1, 3)[:, self.layout.row_r]

    @spanned("attention")
    def append(self, kv: torch.Tensor) -> None:
        """Store one token per row."""
        self.k[self.used, : self.rows], self.v[self.used, : self.rows] = kv.chunk(2, dim=1)
        self.used += 1

    @spanned("attention")
    def attend(self, q: torch.Tensor) -> torch.Tensor:
        """Attend by sums of elementwise products, some slots at a time."""
        before = self.layout.width if self.layout.shared else 0
        scores = q.new_empty(before + self.used, *q.shape[:2])
        own = scores[before:]
        if self.prompts is not None:
            scores[:before] = self.prompts.scores(q[:, :, None])[:, :, 0].permute(2, 0, 1)
        for part, room in self._parts(q):
            torch.sum(torch.mul(q, self.k[part, : self.rows], out=room), -1, out=own[part])
        if not self.layout.shared and self.layout.bias_rl is not None:
            own[: self.layout.width] += self.layout.bias_rl.T[..., None]
        weights = torch.softmax(scores, dim=0)
        return self._values(q, weights[:before], weights[before:]).reshape(self.rows, -1)

    def _values(self, q: torch.Tensor, prompt: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        out = None
        if self.prompts is not None:
            out = self.prompts.values(prompt.permute(1, 2, 0)[:, :, None])[:, :, 0]
        for part, room in self._parts(q):
            more = torch.mul(own[part, :, :, None], self.v[part, : self.rows], out=room).sum(0)
            out = more if out is None else out.add_(more)
        assert out is not None
        return out

    def _parts(self, q: torch.Tensor) -> list[tuple[slice, torch.Tensor]]:
        """Return slices of the used slots, and a buffer for the product of each."""
        # The product of all slots at once would exceed a core's cache, and would be written to memory only to be
        # summed.
        each = max(1, CHUNK // q.numel())
        room = q.new_empty(min(each, self.used), *q.shape)
        starts = range(0, self.used, each)
        return [(slice(i, min(i + each, self.used)), room[: self.used - i]) for i in starts]

    @spanned("attention")
    def keep(self, index_n: torch.Tensor, needed: torch.Tensor | None) -> None:
        """Move the rows to the front of each slot."""
        self.rows = len(index_n)
        for held in (self.k, self.v):
            held[: self.used, : self.rows] = held[: self.used].index_select(1, index_n)
        if self.prompts is not None and needed is not None:
            self.prompts.keep(needed)

    @spanned("attention")
    def fork(self, parent_n: torch.Tensor) -> None:
        """Append copies of rows after the last one of each slot."""
        before, self.rows = self.rows, self.rows + len(parent_n)
        for held in (self.k, self.v):
            held[: self.used, before : self.rows] = held[: self.used].index_select(1, parent_n)

    def written(self, index_n: torch.Tensor) -> torch.Tensor:
        """Return the shared prompts followed by the rows' own slots, [2,N,kv_heads,slots,d]."""
        own = torch.stack([held[: self.used, index_n].permute(1, 2, 0, 3) for held in (self.k, self.v)])
        return own if self.prompts is None else torch.cat([self.prompts.of(index_n), own], dim=3)


def _behind(bias_rl: torch.Tensor | None, used: int) -> torch.Tensor | None:
    """Extend the bias of the prompts' slots by zeros for the slots after them, [R, used]."""
    return None if bias_rl is None else F.pad(bias_rl, (0, used - bias_rl.shape[1]))
