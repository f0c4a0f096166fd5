"""The few operations of the lean forward that are faster with a gradient written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .lean_plan import Block, Plan

SHORT_KEYS = 128
"""On a CPU, up to so many keys two batched products beat the fused attention kernel."""
VECTOR = 8
"""Numbers of a vector register (float32, AVX2): torch's softmax is fast where rows are multiples of it."""
SAFE_SCORE = 60.0
"""exp(±60), and sums and inverses of many of them, stay far inside the range of float32."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich 2019, equation 4)."""
    by_hand = torch.is_grad_enabled() and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    if not by_hand:
        return F.rms_norm(x, weight.shape, weight, eps)
    return _RmsNorm.apply(x, weight, eps)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        scale = torch.rsqrt_(x.square().mean(-1, keepdim=True).add_(eps))
        unit = x * scale
        ctx.save_for_backward(unit, scale, weight)
        return unit * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        unit, scale, weight = ctx.saved_tensors
        product = grad * unit
        grad_weight = product.flatten(0, -2).sum(0)
        along = product.mul_(weight).mean(-1, keepdim=True)
        return torch.addcmul(grad * weight, unit, along, value=-1).mul_(scale), grad_weight, None


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up (Shazeer 2020, "GLU Variants Improve Transformer")."""
    return _SwiGLU.apply(gate, up)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        active = F.silu(gate)
        ctx.save_for_backward(gate, up, active)
        return active * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up, active = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), active * grad


def rotate(x_shd: torch.Tensor, turn_s: torch.Tensor, heads: int) -> torch.Tensor:
    """Turn the first `heads` heads by rotary positions (Su et al. 2021, section 3.2), leave the others.

    Neighbouring dimensions form the pairs, so that a pair is a complex number and its turn one product;
    `turn_s` is exp(i * angle), [S, 1, dimensions / 2].
    """
    return _Rotate.apply(x_shd, turn_s, heads)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_shd: torch.Tensor, turn_s: torch.Tensor, heads: int) -> torch.Tensor:
        ctx.save_for_backward(turn_s)
        ctx.heads = heads
        return _turn(x_shd, turn_s, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_shd: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _turn(grad_shd, ctx.saved_tensors[0].conj(), ctx.heads), None, None


def _turn(x_shd: torch.Tensor, turn_s: torch.Tensor, heads: int) -> torch.Tensor:
    return torch.cat([turned(x_shd[:, :heads], turn_s), x_shd[:, heads:]], dim=1)


def turned(x_shd: torch.Tensor, turn_s: torch.Tensor) -> torch.Tensor:
    """Turn all heads of x [S, heads, d] (see `rotate`); the product is taken in float32 or better."""
    wide = x_shd if x_shd.dtype in (torch.float32, torch.float64) else x_shd.float()
    pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn_s).flatten(-2).to(x_shd.dtype)


@dataclass(frozen=True)
class _BlockIndex:
    """Where a block's vectors come from, as rows of the stream seen as [S * heads, dimensions]."""

    block: Block
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    padding: torch.Tensor


class HeadLayout:
    """Moves vectors between the stream [S, heads, d] and the padded rows [R, heads, L, d] of a plan's blocks."""

    def __init__(self, plan: Plan, heads: int, kv_heads: int) -> None:
        self.heads, self.kv_heads, self.total = heads, kv_heads, heads + 2 * kv_heads
        self.stream = len(plan.ids_s)
        self.blocks = [self._index(block) for block in plan.blocks]
        own = torch.cat([self._rows(block.token_rl, 0, heads, heads) for block in plan.blocks])
        self.own = torch.empty(self.stream * heads + 1, dtype=torch.long, device=own.device)
        self.own[own] = torch.arange(len(own), device=own.device)
        self.own = self.own[:-1]
        self.seen = torch.cat([_keys(block).flatten() for block in plan.blocks])
        self.seen = self.seen.masked_fill(self.seen < 0, self.stream)

    def _index(self, block: Block) -> _BlockIndex:
        own, keys, packed = block.token_rl, _keys(block), self.stream * self.total - 1
        return _BlockIndex(
            block,
            self._rows(own, 0, self.heads, self.total).clamp_(max=packed),
            self._rows(keys, self.heads, self.kv_heads, self.total).clamp_(max=packed),
            self._rows(keys, self.heads + self.kv_heads, self.kv_heads, self.total).clamp_(max=packed),
            self._rows(own, 0, self.heads, self.heads).clamp_(max=self.stream * self.heads - 1),
            (own < 0)[:, None].expand(-1, self.heads, -1).flatten().nonzero()[:, 0],
        )

    def _rows(self, token_rl: torch.Tensor, first: int, count: int, total: int) -> torch.Tensor:
        """Return rows in the order [R, count, L]; padding gets the row after the last."""
        head = torch.arange(first, first + count, device=token_rl.device)
        row = token_rl[:, None] * total + head[:, None]
        return row.masked_fill_(token_rl[:, None] < 0, self.stream * total).flatten()

    def split(self, qkv_shd: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Return query [R,heads,L,d], key and value [R,kv_heads,keys,d] of every block."""
        flat = _Split.apply(qkv_shd, self)
        return [flat[i : i + 3] for i in range(0, len(flat), 3)]

    def merge(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        """Return attention outputs [R,heads,L,d] of all blocks as the stream [S, heads * d]."""
        return _Merge.apply(self, *outputs)


def _keys(block: Block) -> torch.Tensor:
    return block.token_rl if block.key_rk is None else block.key_rk


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv_shd: torch.Tensor, layout: HeadLayout) -> tuple[torch.Tensor, ...]:
        ctx.layout, size = layout, qkv_shd.shape[-1]
        rows = qkv_shd.reshape(-1, size)
        out: list[torch.Tensor] = []
        for index in layout.blocks:
            count = len(index.block.token_rl)
            out.append(rows.index_select(0, index.query).view(count, layout.heads, -1, size))
            out.append(rows.index_select(0, index.key).view(count, layout.kv_heads, -1, size))
            out.append(rows.index_select(0, index.value).view(count, layout.kv_heads, -1, size))
        return tuple(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        layout, size = ctx.layout, grads[0].shape[-1]
        query = torch.cat([grad.reshape(-1, size) for grad in grads[::3]]).index_select(0, layout.own)
        seen = _token_by_token(grads[1::3], grads[2::3])
        wide = seen if seen.dtype in (torch.float32, torch.float64) else seen.float()
        # Keys and values that several rows see get the sum of what comes back, always in the same order.
        summed = torch.ops.aten.embedding_dense_backward(wide, layout.seen, layout.stream + 1, layout.stream, False)
        both = summed[:-1].to(seen.dtype).view(layout.stream, -1, size)
        return torch.cat([query.view(layout.stream, -1, size), both], dim=1), None


def _token_by_token(keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return keys and values [R,heads,K,d] of all blocks, those of a token side by side, [sum of R * K, 2 heads d]."""
    counts, (_, heads, _, size) = [key.shape[0] * key.shape[2] for key in keys], keys[0].shape
    found = keys[0].new_empty(sum(counts), 2 * heads * size)
    for part, key, value in zip(found.split(counts), keys, values, strict=True):
        both = part.view(key.shape[0], key.shape[2], 2 * heads, size)
        both[:, :, :heads], both[:, :, heads:] = key.transpose(1, 2), value.transpose(1, 2)
    return found


class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layout: HeadLayout, *outputs: torch.Tensor) -> torch.Tensor:
        ctx.layout, ctx.shapes = layout, [out.shape for out in outputs]
        size = outputs[0].shape[-1]
        flat = torch.cat([out.reshape(-1, size) for out in outputs])
        return flat.index_select(0, layout.own).view(-1, layout.heads * size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        rows = grad.reshape(-1, ctx.shapes[0][-1])
        parts = [rows.index_select(0, i.output).index_fill_(0, i.padding, 0.0) for i in ctx.layout.blocks]
        return None, *(part.view(shape) for part, shape in zip(parts, ctx.shapes, strict=True))


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block: Block, *, scaled: bool = False
) -> torch.Tensor:
    """Return softmax(query @ key.T / sqrt(d) + bias) @ value, [R,heads,L,d]; query heads share key heads evenly.

    With `scaled` the queries are divided by sqrt(d) already. Rows that see their own tokens alone are causal:
    padding lies behind.
    """
    rows, heads, length, size = query.shape
    shared = heads // key.shape[1]
    if query.device.type != "cpu" or key.shape[2] > SHORT_KEYS:
        causal = block.key_rk is None
        mask, scale = None if causal else block.bias, 1.0 if scaled else None
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=shared > 1
        )
    grouped = (query if scaled else query * (1 / math.sqrt(size))).view(rows, key.shape[1], shared * length, size)
    bias = block.bias[:, :, None].expand(-1, -1, shared, -1, -1).flatten(2, 3)
    return _Attend.apply(grouped, key, value, bias).view(query.shape)


class _Attend(torch.autograd.Function):
    """softmax(query @ key.T + bias) @ value of scaled queries [R,kv_heads,shared * L,d]."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        weights = attention_weights(query @ key.transpose(2, 3), bias)
        out = weights @ value
        ctx.save_for_backward(query, key, value, weights, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        query, key, value, weights, out = ctx.saved_tensors
        grad_value = weights.transpose(2, 3) @ grad
        along = (grad * out).sum(-1, keepdim=True)
        grad_scores = (grad @ value.transpose(2, 3)).sub_(along).mul_(weights)
        return grad_scores @ key, grad_scores.transpose(2, 3) @ query, grad_value, None


def attention_weights(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return softmax(scores + bias) over the last axis; `scores` is overwritten.

    torch's softmax is about ten times slower on a CPU where the axis is no multiple of its vector width. There the
    exponentials are summed by hand, without subtracting the maximum where no score is large enough to need that.
    """
    keys = scores.shape[-1]
    smallest, largest = torch.aminmax(scores)
    scores += bias
    if keys % VECTOR == 0 or max(-float(smallest), float(largest)) > SAFE_SCORE:
        return torch.softmax(scores, dim=-1)
    weights = scores.exp_()
    total = weights.view(-1, keys) @ torch.ones(keys, dtype=weights.dtype, device=weights.device)
    return weights.mul_(total.reciprocal_().view(*weights.shape[:-1], 1))
