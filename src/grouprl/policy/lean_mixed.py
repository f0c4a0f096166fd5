"""The layers of the lean forward in mixed precision: as few roundings, copies and kept numbers as its products allow.

What enters a product is kept rounded to bfloat16, which is how its gradients need it; what can be computed anew from
that is not kept. Weights are rounded where they are multiplied, from the parameters themselves, and gradients come back
to each of them, so that no joined float32 copy is made. The residual stream, norms and sums over tokens are float32.
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
    """How the heads of a layer are projected and turned.

    Attributes:
        eps: of the norm.
        scales: by which the outputs of each weight are multiplied.
        order_n: which joined output each head's dimension is, pairs interleaved; `back_n` is the way back.
        turn_s: exp(i * angle) per token, [S, 1, size / 2] complex.
        turning: how many of the first heads are turned.
        size: dimensions of a head.
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

    The bias comes joined, scaled and in the order of the heads.
    """
    return _Heads.apply(x, norm, bias_n, how, *weights)


def mixed_feed_forward(
    x: torch.Tensor, norm: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, eps: float
) -> torch.Tensor:
    """Return x + (silu(y @ gate.T) * (y @ up.T)) @ down.T with y = rms_norm(x) * norm, [S, hidden] float32."""
    return _FeedForward.apply(x, norm, gate, up, down, eps)


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Ctx, x: torch.Tensor, norm: torch.Tensor, bias_n: torch.Tensor | None, how: HeadTurn, *weights: torch.Tensor
    ) -> torch.Tensor:
        unit, scale = _unit(x, how.eps)
        y = (unit @ _folded(weights, norm, how.scales)[how.order_n].T).float()
        y = y if bias_n is None else y.add_(bias_n)
        ctx.save_for_backward(unit, scale, norm, *weights)
        ctx.how = how
        return _turn(y, how, how.turn_s)

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        unit, scale, norm, *weights = ctx.saved_tensors
        how: HeadTurn = ctx.how
        grad = _turn(grad.clone(), how, how.turn_s.conj())
        grad_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        rounded = grad.bfloat16()[:, how.back_n]
        folded = _folded(weights, norm, how.scales)
        grad_x = _grad_normed(rounded @ folded, unit, scale)
        grads = _grad_folded(rounded.T @ unit, norm, weights, how.scales) if _learns(ctx, 4) else [None] * 4
        return grad_x, grads[0], grad_bias, None, *grads[1:]


class _FeedForward(torch.autograd.Function):
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
        gate_up = unit @ _folded((gate, up), norm, (1.0, 1.0)).T
        ctx.save_for_backward(unit, scale, norm, gate, up, down, gate_up)
        return x + _active(gate_up) @ down.bfloat16().T

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        unit, scale, norm, gate, up, down, gate_up = ctx.saved_tensors
        rounded = grad.bfloat16()
        active, grad_gate_up = _grad_active(rounded @ down.bfloat16(), gate_up)
        grad_down = (rounded.T @ active).float() if ctx.needs_input_grad[4] else None
        grad_x = _grad_normed(grad_gate_up @ _folded((gate, up), norm, (1.0, 1.0)), unit, scale).add_(grad)
        grads: Sequence[torch.Tensor | None] = [None] * 3
        if _learns(ctx, 2):
            grads = _grad_folded(grad_gate_up.T @ unit, norm, (gate, up), (1.0, 1.0))
        return grad_x, *grads, grad_down, None


def _learns(ctx: Ctx, first: int) -> bool:
    """Whether the norm or one of the weights from input `first` on wants a gradient."""
    return ctx.needs_input_grad[1] or any(ctx.needs_input_grad[first:])


def _unit(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x / sqrt(mean(x^2) + eps), rounded, and the factor [S, 1]."""
    square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
    scale = square.div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).bfloat16(), scale


def _grad_normed(grad_unit: torch.Tensor, unit: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the gradient of x from that of its `unit`."""
    grad_unit, unit = grad_unit.float(), unit.float()
    along = (grad_unit * unit).sum(-1, keepdim=True)
    return grad_unit.addcmul_(unit, along, value=-1 / unit.shape[-1]).mul_(scale)


def _folded(weights: Sequence[torch.Tensor], norm: torch.Tensor, scales: Sequence[float]) -> torch.Tensor:
    """Return the joined weights [N, hidden] with the norm's and their own factors, rounded once."""
    found = norm.new_empty(sum(map(len, weights)), len(norm), dtype=torch.bfloat16)
    pieces = found.split([len(weight) for weight in weights])
    for piece, weight, scale in zip(pieces, weights, scales, strict=True):
        piece.copy_(weight * (norm if scale == 1.0 else norm * scale))
    return found


def _grad_folded(
    grad: torch.Tensor, norm: torch.Tensor, weights: Sequence[torch.Tensor], scales: Sequence[float]
) -> list[torch.Tensor]:
    """Return the gradients of the norm and of each weight from that of the joined ones."""
    grad_norm, grads = torch.zeros_like(norm), []
    for rounded, weight, scale in zip(grad.split([len(weight) for weight in weights]), weights, scales, strict=True):
        wide = rounded.float() if scale == 1.0 else rounded.float().mul_(scale)
        grad_norm += (wide * weight).sum(0)
        grads.append(wide.mul_(norm))
    return [grad_norm, *grads]


def _active(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up of rounded [S, 2 f], rounded once."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return F.silu(gate, inplace=True).mul_(up).bfloat16()


def _grad_active(grad: torch.Tensor, gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `_active` makes of `gate_up`, and the gradient of `gate_up` from that of it, each rounded once."""
    (gate, up), grad = gate_up.float().chunk(2, dim=-1), grad.float()
    found, active = torch.empty_like(gate_up), F.silu(gate)
    grad_gate, grad_up = found.chunk(2, dim=-1)
    grad_up.copy_(active * grad)
    grad_gate.copy_(torch.ops.aten.silu_backward(grad.mul_(up), gate))
    return active.mul_(up).bfloat16(), found


def _turn(y: torch.Tensor, how: HeadTurn, turn_s: torch.Tensor) -> torch.Tensor:
    """Turn the first heads of y [S, N] in place."""
    heads = y.view(len(y), -1, how.size)[:, : how.turning]
    torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(turn_s)
    return y
