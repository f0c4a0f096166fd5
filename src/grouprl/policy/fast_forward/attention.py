"""Attention of the lean forward pass: from the stream to the padded rows of a plan's blocks, and back.

Queries, keys and values of all blocks are in one table, so that each direction is one operation. Gradients are
hand-written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from grouprl.policy.autograd import Ctx
from grouprl.policy.fast_forward.token_plan import Block, PassPlan
from grouprl.policy.fused_attention import fused_attention
from grouprl.policy.passes import anew
from grouprl.policy.products import wide_sums

SHORT_KEYS = 128
"""Number of keys up to which two batched products beat the fused attention kernel on a CPU."""
VECTOR = 8
"""Number of float32 values in an AVX2 register: torch's softmax is fast if the length of rows is a multiple of it."""
SAFE_SCORE = 60.0
"""Largest score whose exponential needs no subtraction of the maximum: exp(±60), and sums and inverses of many such
numbers, are well within the range of float32.
"""

MASK_NUMBERS = 2**25
"""Numbers of a mask up to which it is kept whole for all layers."""


def attention(qkv_shd: torch.Tensor, layout: HeadLayout, *, scaled: bool = False) -> torch.Tensor:
    """Return softmax(query @ key.T / sqrt(d) + bias) @ value of the stream [S, heads + 2 kv_heads, d], [S, heads * d].

    Query heads share key heads evenly. `scaled` says that the queries have already been divided by sqrt(d).
    """
    scale = 1.0 if scaled else 1 / math.sqrt(qkv_shd.shape[-1])
    if not layout.long:
        return _Merge.apply(_AttendAll.apply(qkv_shd, layout, scale), layout)
    table_nd = _Gather.apply(qkv_shd, layout)
    short_nd, long_nd = table_nd.split(layout.cut)
    long_nd = long_nd.bfloat16() if layout.rounded else long_nd
    found = [_Attend.apply(short_nd, layout, scale)] if layout.short else []
    parts = zip(layout.parts(long_nd, layout.long), layout.long, strict=True)
    found += [_fused(each, block, scale).to(table_nd.dtype) for each, block in parts]
    return _Merge.apply(torch.cat(found), layout)


class HeadLayout:
    """Places of the vectors of each token and head in the table [N,d] of all blocks.

    The table holds queries [R,heads,L,d], keys and values [R,kv_heads,K,d] of each block: first of the blocks that
    `_Attend` processes (`short`), then of those for the fused kernel (`long`).
    """

    def __init__(self, plan: PassPlan, heads: int, kv_heads: int, *, mixed: bool = False) -> None:
        """Lay out the blocks of `plan`; `mixed`: products of gradients may be taken in bfloat16, sums in float32."""
        self.heads, self.kv_heads, self.total, self.mixed = heads, kv_heads, heads + 2 * kv_heads, mixed
        self.device, self.stream = plan.ids_s.device, len(plan.ids_s)
        self.rounded = mixed and self.device.type != "cpu"
        """Whether the fused kernel is given bfloat16, for which GPUs have dedicated units."""
        few = [self.device.type == "cpu" and _keys(block).shape[1] <= SHORT_KEYS for block in plan.blocks]
        self.short = [block for block, yes in zip(plan.blocks, few, strict=True) if yes]
        self.long = [block for block, yes in zip(plan.blocks, few, strict=True) if not yes]
        self.cut = [self._size(self.short), self._size(self.long)]
        self._place_heads()
        self._place_outputs()

    def _place_heads(self) -> None:
        """Compute the row of the stream, viewed as [S * total, d], for each row of the table, and the inverse."""
        rows, kv = [], self.kv_heads
        for block in (*self.short, *self.long):
            rows += [self._rows(block.token_rl, 0, self.heads, self.total)]
            rows += [self._rows(_keys(block), first, kv, self.total) for first in (self.heads, self.heads + kv)]
        row_n, packed = torch.cat(rows), self.stream * self.total
        self.gather_n = row_n.clamp(max=packed - 1)
        # Padding has the number after the last row: its count is dropped, and so are its places, which sort last.
        count = torch.bincount(row_n, minlength=packed + 1)[:-1]
        self.begin_n = F.pad(count.cumsum(0), (1, 0))
        self.back_n = _sorted_places(row_n)[: int(self.begin_n[-1])]

    def _place_outputs(self) -> None:
        """Compute the row of the outputs [sum of R * heads * L, d] for each token and head, and the inverse."""
        blocks, packed = (*self.short, *self.long), self.stream * self.heads
        row_n = torch.cat([self._rows(block.token_rl, 0, self.heads, self.heads) for block in blocks])
        own = torch.empty(packed + 1, dtype=torch.long, device=self.device)
        # All padding writes into the extra entry at the end, which is dropped.
        own[row_n] = torch.arange(len(row_n), device=self.device)
        self.own_n, self.output_n = own[:-1], row_n.clamp(max=packed - 1)
        self.padding_n = (row_n == packed).nonzero()[:, 0]

    def _rows(self, token_rl: torch.Tensor, first: int, count: int, total: int) -> torch.Tensor:
        """Return the stream's rows in the order [R, count, L]; padding gets the index after the last row."""
        head = torch.arange(first, first + count, device=token_rl.device)
        row = token_rl[:, None] * total + head[:, None]
        return row.masked_fill_(token_rl[:, None] < 0, self.stream * total).flatten()

    def _shapes(self, block: Block) -> list[tuple[int, int, int]]:
        (rows, length), keys = block.token_rl.shape, _keys(block).shape[1]
        return [(rows, self.heads, length), *[(rows, self.kv_heads, keys)] * 2]

    def _size(self, blocks: Sequence[Block]) -> int:
        return sum(math.prod(shape) for block in blocks for shape in self._shapes(block))

    def parts(self, table_nd: torch.Tensor, blocks: Sequence[Block]) -> list[list[torch.Tensor]]:
        """Return query [R,heads,L,d], key and value [R,kv_heads,K,d] of every block as views of its table."""
        shapes = [self._shapes(block) for block in blocks]
        pieces = iter(table_nd.split([math.prod(shape) for each in shapes for shape in each]))
        return [[next(pieces).view(*shape, -1) for shape in each] for each in shapes]


def _keys(block: Block) -> torch.Tensor:
    return block.token_rl if block.key_rk is None else block.key_rk


def _sorted_places(row_n: torch.Tensor) -> torch.Tensor:
    """Return the stable argsort of `row_n`."""
    if row_n.device.type != "cpu":
        return row_n.argsort(stable=True)
    numbers = row_n.numpy()  # numpy uses a radix sort for 16-bit integers, which is many times faster
    return torch.from_numpy(numbers.astype(np.min_scalar_type(numbers.max())).argsort(kind="stable"))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Ctx, qkv_shd: torch.Tensor, layout: HeadLayout) -> torch.Tensor:
        ctx.layout = layout
        return _gathered(qkv_shd, layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _summed(grad, ctx.layout), None


def _gathered(qkv_shd: torch.Tensor, layout: HeadLayout) -> torch.Tensor:
    """Return the table of all blocks [N,d], gathered from the stream."""
    return qkv_shd.reshape(-1, qkv_shd.shape[-1]).index_select(0, layout.gather_n)


def _summed(grad: torch.Tensor, layout: HeadLayout) -> torch.Tensor:
    """Return the gradient of the stream, given that of its table."""
    wide = grad if grad.dtype in (torch.float32, torch.float64) else grad.float()
    # Gradients of keys and values that several rows see are summed, always in the same order.
    sums = F.embedding_bag(layout.back_n, wide, layout.begin_n, mode="sum", include_last_offset=True)
    return sums.to(grad.dtype).view(layout.stream, layout.total, -1)


class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Ctx, out_nd: torch.Tensor, layout: HeadLayout) -> torch.Tensor:
        ctx.layout = layout
        return out_nd.index_select(0, layout.own_n).view(layout.stream, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        rows = grad.reshape(ctx.layout.stream * ctx.layout.heads, -1)
        return rows.index_select(0, ctx.layout.output_n).index_fill_(0, ctx.layout.padding_n, 0.0), None


def _fused(part: Sequence[torch.Tensor], block: Block, scale: float) -> torch.Tensor:
    """Attend in one kernel, [R * heads * L, d]. Rows that see only their own tokens need no mask but the causal one:
    padding comes after them. A mask that would be too large is made for some columns at a time, and again in the
    backward pass.
    """
    query, key, value = part
    attend = partial(fused_attention, scale=scale)
    if block.key_rk is None:
        return attend(query, key, value, causal=True).flatten(0, 2)
    columns = max(1, MASK_NUMBERS // (len(block.last_rl) * key.shape[2]))
    if columns >= query.shape[2]:
        return attend(query, key, value, mask=block.bias.to(query.dtype)).flatten(0, 2)
    found = []
    for start in range(0, query.shape[2], columns):
        some = slice(start, start + columns)
        found.append(anew(_masked, attend, query[:, :, some], key, value, partial(block.bias_of, some)))
    return torch.cat(found, 2).flatten(0, 2)


def _masked(
    attend: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Callable[[], torch.Tensor],
) -> torch.Tensor:
    return attend(query, key, value, mask=mask().to(query.dtype))


class _Attend(torch.autograd.Function):
    """Attention of the layout's short blocks from their table, [sum of R * heads * L, d]."""

    @staticmethod
    def forward(ctx: Ctx, table_nd: torch.Tensor, layout: HeadLayout, scale: float) -> torch.Tensor:
        out_nd, weights = _attended(table_nd, layout, scale)
        ctx.layout, ctx.scale = layout, scale
        ctx.save_for_backward(table_nd, out_nd, *weights)
        return out_nd

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad_nd: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        table_nd, out_nd, *weights = ctx.saved_tensors
        return _grad_attended(grad_nd, table_nd, out_nd, weights, ctx.layout, ctx.scale), None, None


class _AttendAll(torch.autograd.Function):
    """The same from the stream, if all blocks are short: the table, several times as large, is not kept but gathered
    again.
    """

    @staticmethod
    def forward(ctx: Ctx, qkv_shd: torch.Tensor, layout: HeadLayout, scale: float) -> torch.Tensor:
        out_nd, weights = _attended(_gathered(qkv_shd, layout), layout, scale)
        ctx.layout, ctx.scale = layout, scale
        ctx.save_for_backward(qkv_shd, out_nd, *weights)
        return out_nd

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad_nd: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        qkv_shd, out_nd, *weights = ctx.saved_tensors
        table_nd = _gathered(qkv_shd, ctx.layout)
        found_nd = _grad_attended(grad_nd, table_nd, out_nd, weights, ctx.layout, ctx.scale)
        return _summed(found_nd, ctx.layout), None, None


def _attended(table_nd: torch.Tensor, layout: HeadLayout, scale: float) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the outputs of the short blocks and each block's attention weights."""
    parts = [_batched(layout, part) for part in layout.parts(table_nd, layout.short)]
    out_nd = table_nd.new_empty(sum(query.shape[:2].numel() for query, _, _ in parts), table_nd.shape[-1])
    outs, weights = _like(out_nd, [query for query, _, _ in parts]), []
    for block, (query, key, value), out in zip(layout.short, parts, outs, strict=True):
        scores = torch.bmm(query, key.transpose(1, 2))
        scores = scores if scale == 1.0 else scores.mul_(scale)
        seen = scores.view(len(block.token_rl), layout.heads, -1, key.shape[1])
        weights.append(attention_weights(seen, block.bias).view(scores.shape))
        torch.bmm(weights[-1], value, out=out)
    return out_nd, weights


def _grad_attended(
    grad_nd: torch.Tensor,
    table_nd: torch.Tensor,
    out_nd: torch.Tensor,
    weights: Sequence[torch.Tensor],
    layout: HeadLayout,
    scale: float,
) -> torch.Tensor:
    """Return the gradient of the short blocks' table."""
    found_nd = torch.empty_like(table_nd)
    parts, found = ([_batched(layout, x) for x in layout.parts(t, layout.short)] for t in (table_nd, found_nd))
    queries = [query for query, _, _ in parts]
    # What the softmax subtracts, a sum over keys of weight times (gradient · value), is gradient · output.
    along_nd = (grad_nd * out_nd).sum(-1, keepdim=True)
    columns = (parts, found, weights, _like(grad_nd, queries), _like(along_nd, queries))
    with wide_sums(layout.mixed, grad_nd.device):
        for (query, key, value), (grad_query, grad_key, grad_value), weight, grad, along in zip(*columns, strict=True):
            torch.bmm(weight.transpose(1, 2), grad, out=grad_value)
            scores = torch.bmm(grad, value.transpose(1, 2)).sub_(along).mul_(weight)
            scores = scores if scale == 1.0 else scores.mul_(scale)
            torch.bmm(scores, key, out=grad_query)
            torch.bmm(scores.transpose(1, 2), query, out=grad_key)
    return found_nd


def _batched(layout: HeadLayout, part: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """View a block's vectors as batches, one for each row and key head, with the query heads of a key head next to each
    other.
    """
    query, key, value = part
    shared = layout.heads // layout.kv_heads * query.shape[2]
    return query.view(-1, shared, query.shape[3]), key.flatten(0, 1), value.flatten(0, 1)


def _like(rows_nd: torch.Tensor, batches: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Split rows into batches with the numbers of rows of `batches` [n,m,…]."""
    pieces = rows_nd.split([x.shape[:2].numel() for x in batches])
    return [piece.view(*x.shape[:2], -1) for piece, x in zip(pieces, batches, strict=True)]


def attention_weights(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return softmax(scores + bias) over the last axis; `scores` is overwritten.

    torch's softmax on a CPU is about ten times slower if the axis is not a multiple of its vector width. In that case
    the exponentials are summed here, without subtracting the maximum unless a score is large enough to need it.
    """
    keys = scores.shape[-1]
    # Before the bias is added: its -inf would make every block one of large scores.
    smallest, largest = torch.aminmax(scores)
    scores += bias
    if keys % VECTOR == 0 or max(-float(smallest), float(largest)) > SAFE_SCORE:
        return torch.softmax(scores, dim=-1)
    weights = scores.exp_()
    total = weights.view(-1, keys) @ torch.ones(keys, dtype=weights.dtype, device=weights.device)
    return weights.mul_(total.reciprocal_().view(*weights.shape[:-1], 1))
