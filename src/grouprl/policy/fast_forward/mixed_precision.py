"""The layers of the lean forward pass in mixed precision, with as few roundings, copies and stored activations as
possible.

The inputs of a product are kept rounded to bfloat16, as its gradients need them; whatever can be recomputed from these
is not kept. Weights are rounded from the parameters themselves at each product, and each parameter gets its own
gradient, so that no joined float32 copy is made. The residual stream, norms and sums over tokens are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from grouprl.policy.autograd import Ctx


@dataclass(frozen=True)
class HeadTurn:
    """Settings of the projection and rotation of a layer's heads.

    Attributes:
        eps: epsilon of the norm.
        scales: factors of the outputs of each weight.
        order_n: index of the joined output for each dimension of the heads, pairs interleaved; `back_n` is the inverse.
        turn_s: exp(i * angle) per token, [S, 1, size / 2] complex.
        turning: number of heads, from the first, that are rotated.
        size: number of dimensions of a head.
    """

    eps: float
    scales: tuple[float, ...]
    order_n: torch.Tensor
    back_n: torch.Tensor
    turn_s: torch.Tensor
    turning: int
    size: int


def mixed_heads(
    x: torch.Tensor, norm: torch.Tensor, bias_n: torch.Tensor | None, weights: Sequence[torch.Tensor], how: HeadTurn
) -> torch.Tensor:
    """Return turn(rms_norm(x) * norm @ joined(weights).T * scale + bias), [S, N] float32.

    The bias has to be joined, scaled and in the order of the heads.
    """
    return _Heads.apply(x, norm, bias_n, how, *weights)


def mixed_feed_forward(
    x: torch.Tensor, norm: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, eps: float
) -> torch.Tensor:
    """Return x + (silu(y @ gate.T) * (y @ up.T)) @ down.T with y = rms_norm(x) * norm, [S, hidden] float32."""
    return _GatedBlock.apply(x, norm, gate, up, down, eps)


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Ctx,
        x: torch.Tensor,
        norm: torch.Tensor,
        bias_n: torch.Tensor | None,
        how: HeadTurn,
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        unit, scale = _unit(x, how.eps)
        y = ((unit * norm).bfloat16() @ _rounded(weights, how.scales)[how.order_n].T).float()
        y = y if bias_n is None else y.add_(bias_n)
        ctx.save_for_backward(unit.bfloat16(), scale, norm, *weights)
        ctx.how = how
        return _turn(y, how, how.turn_s)

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        unit, scale, norm, *weights = ctx.saved_tensors
        how: HeadTurn = ctx.how
        # A copy, as the rotation is in place, and autograd may use its gradient elsewhere.
        grad = _turn(grad.clone(), how, how.turn_s.conj())
        grad_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        rounded, unit = grad.bfloat16()[:, how.back_n], unit.float()
        grads: Sequence[torch.Tensor | None] = [None] * len(weights)
        if any(ctx.needs_input_grad[4:]):
            grads = _parts(rounded.T @ (unit * norm).bfloat16(), weights, how.scales)
        grad_x, grad_norm = _grad_normed(rounded @ _rounded(weights, how.scales), unit, scale, norm)
        return grad_x, grad_norm, grad_bias, None, *grads


class _GatedBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Ctx,
        x: torch.Tensor,
        norm: torch.Tensor,
        gate: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        unit, scale = _unit(x, eps)
        gate_up = (unit * norm).bfloat16() @ _rounded((gate, up)).T
        ctx.save_for_backward(unit.bfloat16(), scale, norm, gate, up, down, gate_up)
        return x + _active(gate_up) @ down.bfloat16().T

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        unit, scale, norm, gate, up, down, gate_up = ctx.saved_tensors
        rounded, unit = grad.bfloat16(), unit.float()
        active, grad_gate_up = _grad_active(rounded @ down.bfloat16(), gate_up)
        grad_down = (rounded.T @ active).float() if ctx.needs_input_grad[4] else None
        grads: Sequence[torch.Tensor | None] = [None, None]
        if any(ctx.needs_input_grad[2:4]):
            grads = _parts(grad_gate_up.T @ (unit * norm).bfloat16(), (gate, up))
        grad_x, grad_norm = _grad_normed(grad_gate_up @ _rounded((gate, up)), unit, scale, norm)
        return grad_x.add_(grad), grad_norm, *grads, grad_down, None


def _unit(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x / sqrt(mean(x^2) + eps) and the factor 1 / sqrt(mean(x^2) + eps), [S, 1]."""
    # A reduction alone: `x.square()` would first write a tensor as large as x.
    square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
    scale = square.div_(x.shape[-1]).add_(eps).rsqrt_()
    return x * scale, scale


def _grad_normed(
    grad: torch.Tensor, unit: torch.Tensor, scale: torch.Tensor, norm: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of x and of the norm's weight, given that of unit * norm."""
    # From bfloat16 this is a copy, which the steps below may overwrite.
    grad = grad.float()
    product = grad * unit
    grad_norm = product.sum(0)
    along = product.mul_(norm).sum(-1, keepdim=True)
    return grad.mul_(norm).addcmul_(unit, along, value=-1 / unit.shape[-1]).mul_(scale), grad_norm


def _rounded(weights: Sequence[torch.Tensor], scales: Sequence[float] | None = None) -> torch.Tensor:
    """Return the joined weights [N, hidden] times their scales (None: 1), rounded once."""
    found = weights[0].new_empty(sum(map(len, weights)), weights[0].shape[1], dtype=torch.bfloat16)
    pieces = found.split([len(weight) for weight in weights])
    for piece, weight, scale in zip(pieces, weights, scales or [1.0] * len(weights), strict=True):
        piece.copy_(weight if scale == 1.0 else weight * scale)
    return found


def _parts(
    grad: torch.Tensor, weights: Sequence[torch.Tensor], scales: Sequence[float] | None = None
) -> list[torch.Tensor]:
    """Return the gradient of each weight, given that of the result of `_rounded`."""
    pieces = grad.split([len(weight) for weight in weights])
    scaled = zip(pieces, scales or [1.0] * len(weights), strict=True)
    return [piece.float() if scale == 1.0 else piece.float().mul_(scale) for piece, scale in scaled]


def _active(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up of rounded [S, 2 f], rounded once."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return F.silu(gate, inplace=True).mul_(up).bfloat16()


def _grad_active(grad: torch.Tensor, gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `_active(gate_up)` and the gradient of `gate_up`, given that of the former; each is rounded once."""
    (gate, up), grad = gate_up.float().chunk(2, dim=-1), grad.float()
    found, active = torch.empty_like(gate_up), F.silu(gate)
    grad_gate, grad_up = found.chunk(2, dim=-1)
    # First, since the next product overwrites `grad`.
    grad_up.copy_(active * grad)
    grad_gate.copy_(torch.ops.aten.silu_backward(grad.mul_(up), gate))
    return active.mul_(up).bfloat16(), found


def _turn(y: torch.Tensor, how: HeadTurn, turn_s: torch.Tensor) -> torch.Tensor:
    """Rotate the first heads of y [S, N] in place."""
    heads = y.view(len(y), -1, how.size)[:, : how.turning]
    torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(turn_s)
    return y
