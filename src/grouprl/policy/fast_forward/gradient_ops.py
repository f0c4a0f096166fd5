"""The few operations of the lean forward pass that are faster with a hand-written gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from grouprl.policy.autograd import Ctx


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich 2019, equation 4)."""
    by_hand = torch.is_grad_enabled() and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    if not by_hand:
        return F.rms_norm(x, weight.shape, weight, eps)
    return _RmsNorm.apply(x, weight, eps)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Ctx, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        scale = torch.rsqrt_(x.square().mean(-1, keepdim=True).add_(eps))
        unit = x * scale
        ctx.save_for_backward(unit, scale, weight)
        return unit * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
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
    def forward(ctx: Ctx, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        active = F.silu(gate)
        ctx.save_for_backward(gate, up, active)
        return active * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up, active = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), active * grad


def rotate(x_shd: torch.Tensor, turn_s: torch.Tensor, heads: int) -> torch.Tensor:
    """Rotate the first `heads` heads by rotary positions (Su et al. 2021, section 3.2); leave the others unchanged.

    Neighbouring dimensions form the pairs, so that a pair is a complex number and its rotation is one product;
    `turn_s` is exp(i * angle), [S, 1, dimensions / 2].
    """
    return _Rotate.apply(x_shd, turn_s, heads)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Ctx, x_shd: torch.Tensor, turn_s: torch.Tensor, heads: int) -> torch.Tensor:
        ctx.save_for_backward(turn_s)
        ctx.heads = heads
        return _turn(x_shd, turn_s, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad_shd: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _turn(grad_shd, ctx.saved_tensors[0].conj(), ctx.heads), None, None


def _turn(x_shd: torch.Tensor, turn_s: torch.Tensor, heads: int) -> torch.Tensor:
    return torch.cat([turned(x_shd[:, :heads], turn_s), x_shd[:, heads:]], dim=1)


def turned(x_shd: torch.Tensor, turn_s: torch.Tensor) -> torch.Tensor:
    """Rotate all heads of x [S, heads, d] (see `rotate`); the product is computed in float32 or better."""
    wide = x_shd if x_shd.dtype in (torch.float32, torch.float64) else x_shd.float()
    pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn_s).flatten(-2).to(x_shd.dtype)
