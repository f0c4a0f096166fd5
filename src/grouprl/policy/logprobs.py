"""Log-probabilities and entropies of chosen tokens without ever holding [positions, vocabulary]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = {"cpu": 2**20, "cuda": 2**26}
"""Logits held at a time: what the fast cache of a CPU likes, and what keeps a GPU's matrix units busy."""


def token_logprobs(
    hidden_md: torch.Tensor,
    weight_vd: torch.Tensor,
    bias_v: torch.Tensor | None,
    target_m: torch.Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    chunk_elements: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Score `target_m` under softmax((hidden @ weight.T + bias) / temperature).

    Positions are taken in chunks of at most `chunk_elements` logits (at least one position); the backward pass
    computes each chunk anew. No tensor grows with the vocabulary times the positions.

    Returns:
        logp_m and, if asked for, entropy_m in nats: [M], float32 (float64 for float64 models), both differentiable.
    """
    limit = chunk_elements or CHUNK_ELEMENTS.get(hidden_md.device.type, CHUNK_ELEMENTS["cuda"])
    rows = max(1, limit // weight_vd.shape[0])
    logp_m, entropy_m = _TokenLogprobs.apply(hidden_md, weight_vd, bias_v, target_m, temperature, entropy, rows)
    return logp_m, entropy_m if entropy else None


def log_softmax_of(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return log softmax(logits / temperature) over the last axis in float32 or better."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.log_softmax(wide / temperature if temperature != 1.0 else wide, dim=-1)


def entropy_of(logp: torch.Tensor) -> torch.Tensor:
    """Return the entropy in nats of normalised log-probabilities over the last axis."""
    return -(logp.exp() * logp).sum(-1)


class _TokenLogprobs(torch.autograd.Function):
    """d logp / d logits = (onehot - p) / temperature; d entropy / d logits = -p (log p + entropy) / temperature."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_md: torch.Tensor,
        weight_vd: torch.Tensor,
        bias_v: torch.Tensor | None,
        target_m: torch.Tensor,
        temperature: float,
        entropy: bool,
        rows: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.float64 if hidden_md.dtype == torch.float64 else torch.float32
        logp_m = torch.empty(len(hidden_md), dtype=dtype, device=hidden_md.device)
        entropy_m = torch.zeros_like(logp_m)
        for part in _chunks(len(hidden_md), rows):
            logp_cv = log_softmax_of(F.linear(hidden_md[part], weight_vd, bias_v), temperature)
            logp_m[part] = logp_cv.gather(1, target_m[part, None])[:, 0]
            if entropy:
                entropy_m[part] = entropy_of(logp_cv)
        ctx.save_for_backward(hidden_md, weight_vd, bias_v, target_m)
        ctx.temperature, ctx.entropy, ctx.rows = temperature, entropy, rows
        return logp_m, entropy_m

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp_m: torch.Tensor, grad_entropy_m: torch.Tensor) -> tuple[Any, ...]:
        hidden_md, weight_vd, bias_v, target_m = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden_md) if wants_hidden else None
        grad_weight = torch.zeros_like(weight_vd) if wants_weight else None
        grad_bias = torch.zeros_like(bias_v) if wants_bias else None
        for part in _chunks(len(hidden_md), ctx.rows):
            logp_cv = log_softmax_of(F.linear(hidden_md[part], weight_vd, bias_v), ctx.temperature)
            grad_cv = _grad_logits(
                logp_cv, target_m[part], grad_logp_m[part], grad_entropy_m[part] if ctx.entropy else None
            )
            grad_cv = grad_cv.div_(ctx.temperature).to(weight_vd.dtype)
            if grad_hidden is not None:
                torch.mm(grad_cv, weight_vd, out=grad_hidden[part])
            if grad_weight is not None:
                grad_weight.addmm_(grad_cv.T, hidden_md[part])
            if grad_bias is not None:
                grad_bias += grad_cv.sum(0)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _grad_logits(
    logp_cv: torch.Tensor, target_c: torch.Tensor, grad_logp_c: torch.Tensor, grad_entropy_c: torch.Tensor | None
) -> torch.Tensor:
    p_cv = logp_cv.exp()
    if grad_entropy_c is None:
        grad_cv = p_cv.mul_(-grad_logp_c[:, None])
    else:
        surprise_cv = logp_cv.sub_((p_cv * logp_cv).sum(-1, keepdim=True))
        grad_cv = p_cv.mul_(-surprise_cv * grad_entropy_c[:, None] - grad_logp_c[:, None])
    return grad_cv.scatter_add_(1, target_c[:, None], grad_logp_c[:, None])


def _chunks(count: int, rows: int) -> Iterator[slice]:
    return (slice(start, min(start + rows, count)) for start in range(0, count, rows))
