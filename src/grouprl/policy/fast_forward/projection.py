"""Norm, linear layer and rotary positions in one function, and the gated unit, with hand-written gradients.

Few and large operations: the norm's weight is folded into the layer's, so that it needs no operation over all tokens,
forward or backward; rotations are done in place; a layer that only sees embeddings works on the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from grouprl.policy.autograd import Ctx
from grouprl.policy.devices import Precision
from grouprl.policy.products import times

EXACT = (torch.float32, torch.float64)
"""Types in which folding the norm's weight into the layer adds no more rounding than the layer itself."""


@dataclass(frozen=True)
class Projection:
    """The constants of a projection.

    Attributes:
        eps: epsilon of the norm.
        factor_n: factor of each output; None: 1.
        turn_s: exp(i * angle) per token, [S, 1, size / 2] complex; None: no rotation.
        turning: number of heads, from the first, that are rotated.
        size: number of dimensions of a head.
        index_s: row of x for each of the S tokens; None: the rows are the tokens.
        order_n: row of the joined weights for each output; None: in their order.
        precision: the precision of products.
    """

    eps: float
    factor_n: torch.Tensor | None = None
    turn_s: torch.Tensor | None = None
    turning: int = 0
    size: int = 1
    index_s: torch.Tensor | None = None
    order_n: torch.Tensor | None = None
    precision: Precision = "float32"


def project(
    x: torch.Tensor, norm: torch.Tensor, weights: Sequence[torch.Tensor], bias: torch.Tensor | None, how: Projection
) -> torch.Tensor:
    """Return turn((rms_norm(x) * norm) @ joined(weights).T + bias), [S, N]; the bias has to be joined and in order.

    Weights are joined again in the backward pass, so that no copy of them is held until then.
    """
    return _Project.apply(x, norm, bias, how, *weights)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Ctx,
        x: torch.Tensor,
        norm: torch.Tensor,
        bias: torch.Tensor | None,
        how: Projection,
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale = square.div_(x.shape[-1]).add_(how.eps).rsqrt_()
        unit, folded = x * scale, _folded(_joined(weights, how), norm, how)
        if bias is not None and how.factor_n is not None:
            bias = bias * how.factor_n
        if bias is not None and how.precision == "float32":
            y = torch.addmm(bias, unit, folded.T)
        else:
            y = times(unit, folded.T, how.precision)
            y = y if bias is None else y.add_(bias)
        y = y if how.index_s is None else y.index_select(0, how.index_s)
        ctx.save_for_backward(unit, scale, norm, *weights)
        ctx.how, ctx.biased = how, bias is not None
        return _turn(y, how, how.turn_s)

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        unit, scale, norm, *weights = ctx.saved_tensors
        how, size, weight = ctx.how, unit.shape[-1], _joined(weights, ctx.how)
        if how.turn_s is not None:  # the inverse rotation, on a copy: autograd may use its gradient elsewhere
            grad = _turn(grad.clone(), how, how.turn_s.conj())
        if how.index_s is not None:  # tokens that share a row of x add up their gradients there
            grad = torch.ops.aten.embedding_dense_backward(grad, how.index_s, len(unit), -1, False)
        grad_norm = grad_bias = None
        grads: Sequence[torch.Tensor | None] = [None] * len(weights)
        if ctx.needs_input_grad[1] or any(ctx.needs_input_grad[4:]):
            grad_folded = times(grad.T, unit, how.precision)
            grad_folded = grad_folded if how.factor_n is None else grad_folded.mul_(how.factor_n[:, None])
            grad_norm = (grad_folded * weight).sum(0)
            grad_folded.mul_(norm)
            in_order = grad_folded if how.order_n is None else grad_folded[how.order_n.argsort()]
            grads = in_order.split([len(each) for each in weights])
        if ctx.biased and ctx.needs_input_grad[2]:
            grad_bias = grad.sum(0) if how.factor_n is None else grad.sum(0).mul_(how.factor_n)
        grad_unit = times(grad, _folded(weight, norm, how), how.precision)
        along = (grad_unit * unit).sum(-1, keepdim=True)
        grad_x = grad_unit.addcmul_(unit, along, value=-1 / size).mul_(scale)
        return grad_x, grad_norm, grad_bias, None, *grads


def _joined(weights: Sequence[torch.Tensor], how: Projection) -> torch.Tensor:
    whole = weights[0] if len(weights) == 1 else torch.cat(list(weights))
    return whole if how.order_n is None else whole[how.order_n]


def _folded(weight: torch.Tensor, norm: torch.Tensor, how: Projection) -> torch.Tensor:
    folded = weight * norm
    return folded if how.factor_n is None else folded.mul_(how.factor_n[:, None])


def _turn(y: torch.Tensor, how: Projection, turn_s: torch.Tensor | None) -> torch.Tensor:
    """Rotate the first heads of y [S, N] in place."""
    if turn_s is not None:
        heads = y.view(len(y), -1, how.size)[:, : how.turning]
        torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(turn_s)
    return y


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up, given both in one tensor [S, 2 f] (Shazeer 2020, "GLU Variants Improve Transformer")."""
    return _Gated.apply(gate_up)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Ctx, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        active = F.silu(gate)
        ctx.save_for_backward(gate_up, active)
        return active * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: torch.Tensor) -> torch.Tensor:
        gate_up, active = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        found = torch.empty_like(gate_up)
        grad_gate, grad_up = found.chunk(2, dim=-1)
        torch.mul(active, grad, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
        return found
