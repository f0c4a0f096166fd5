"""Attention of a rank's columns to the keys of all ranks that share its rows, instead of a model's own.

transformers calls it by name (`AttentionInterface`) and has it make the mask of a pass (`AttentionMaskInterface`). The
mask is an object here: it says what each column sees, and no mask of a whole pass is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from grouprl.policy.autograd import Ctx
from grouprl.policy.fused_attention import fused_attention
from grouprl.policy.sharded.context_group import ContextGroup
from grouprl.policy.sharded.context_slices import Slices

NAME = "grouprl_context"
"""The name under which transformers knows this attention."""
MASKED = {"cpu": 2**21, "cuda": 2**26}
"""Numbers of a mask at a time: rows × queries × keys."""
NOT_CARRIED = ("softcap", "s_aux", "position_bias")
"""Arguments of other attentions that change the scores."""


@dataclass(frozen=True)
class SliceMask:
    """The mask of a rank's columns: each sees the keys from `first_bl` to itself, of all ranks."""

    group: ContextGroup
    slices: Slices
    first_bl: Tensor
    device: torch.device

    @cached_property
    def column_l(self) -> Tensor:
        """The columns of this rank."""
        return self.slices.columns_of(self.group.rank)

    def within(self, window: int) -> SliceMask:
        """Return the mask of columns that see at most `window` keys, their own included."""
        return replace(self, first_bl=torch.maximum(self.first_bl, self.column_l - window + 1))

    @cached_property
    def blocks(self) -> list[tuple[slice, slice]]:
        """Queries that attend at a time, by their places on this rank, with the keys that any of them sees."""
        most = MASKED.get(self.device.type, MASKED["cuda"])
        size = max(1, most // (len(self.first_bl) * self.slices.length))
        found = []
        for chunk in (0, self.slices.width):
            for start in range(chunk, chunk + self.slices.width, size):
                own = slice(start, min(start + size, chunk + self.slices.width))
                first, last = int(self.first_bl[:, own].min()), int(self.column_l[own.stop - 1])
                found.append((own, slice(first, last + 1)))
        return found

    def seen(self, own: slice, keys: slice) -> Tensor:
        """Return which of some keys some queries see: [B,1,queries,keys]."""
        key_k = torch.arange(keys.start, keys.stop, device=self.device)
        first_bq1 = self.first_bl[:, own, None].to(self.device)
        seen_bqk = (key_k >= first_bq1) & (key_k <= self.column_l[own, None].to(self.device))
        return seen_bqk[:, None]


_MASK: ContextVar[SliceMask] = ContextVar("mask")


@contextmanager
def masked(mask: SliceMask) -> Iterator[None]:
    """Let the model's own code find `mask` as the mask of a pass that begins within this context."""
    token = _MASK.set(mask)
    try:
        yield
    finally:
        _MASK.reset(token)


def register() -> None:
    """Tell transformers of this attention and its masks."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, context_attention)
    AttentionMaskInterface.register(NAME, context_mask)


def context_mask(*, local_size: int | None = None, use_vmap: bool = False, **_: object) -> SliceMask:
    """Return the mask of the pass at hand; `local_size` is the window of layers that slide one.

    Raises:
        NotImplementedError: the model changes the mask in a way of its own.
    """
    if use_vmap:
        raise NotImplementedError("it changes the causal mask")
    mask = _MASK.get()
    return mask if local_size is None else mask.within(local_size)


def context_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: SliceMask,
    scaling: float | None = None,
    dropout: float = 0.0,
    **named: object,
) -> tuple[Tensor, None]:
    """Attend from this rank's columns to those of all ranks: [B,heads,l,d], [B,kv_heads,l,d] to [B,l,heads,d].

    Raises:
        NotImplementedError: the model changes scores in a way of its own.
    """
    changed = [name for name in NOT_CARRIED if named.get(name) is not None]
    if changed or dropout or not isinstance(attention_mask, SliceMask):
        raise NotImplementedError(f"its attention has {', '.join(changed) or 'a mask or dropout of its own'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out: Tensor = _ContextAttention.apply(query, key, value, attention_mask, scale)
    return out.transpose(1, 2).contiguous(), None


class _ContextAttention(torch.autograd.Function):
    """Attention that keeps a rank's own queries, keys and values alone; those of the others are gathered twice."""

    @staticmethod
    def forward(ctx: Ctx, query: Tensor, key: Tensor, value: Tensor, mask: SliceMask, scale: float) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.mask, ctx.scale = mask, scale
        both = _gathered(key, value, mask)
        out = query.new_empty(*query.shape[:3], value.shape[-1])
        for own, keys in mask.blocks:
            out[:, :, own] = _attended(query[:, :, own], both[:, :, keys], key.shape[-1], mask.seen(own, keys), scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        mask: SliceMask = ctx.mask
        both, grad_query = _gathered(key, value, mask), torch.empty_like(query)
        grad_both = torch.zeros_like(both, dtype=torch.promote_types(both.dtype, torch.float32))
        for own, keys in mask.blocks:
            query_part, both_part = (x.detach().requires_grad_() for x in (query[:, :, own], both[:, :, keys]))
            with torch.enable_grad():
                out = _attended(query_part, both_part, key.shape[-1], mask.seen(own, keys), ctx.scale)
            grad_query[:, :, own], more = torch.autograd.grad(out, (query_part, both_part), grad[:, :, own])
            grad_both[:, :, keys] += more
        summed = mask.group.summed(mask.slices.divided(grad_both)).to(key.dtype)
        grad_key, grad_value = summed.split([key.shape[-1], value.shape[-1]], -1)
        return grad_query, grad_key, grad_value, None, None


def _gathered(key: Tensor, value: Tensor, mask: SliceMask) -> Tensor:
    """Return keys and values of all ranks, beside each other: [B,kv_heads,length,d of keys + d of values]."""
    return mask.slices.joined(mask.group.gathered(torch.cat([key, value], -1)))


def _attended(query: Tensor, both: Tensor, key_size: int, seen: Tensor, scale: float) -> Tensor:
    return fused_attention(query, both[..., :key_size], both[..., key_size:], mask=seen, scale=scale)
