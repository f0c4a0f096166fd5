"""Log-probabilities, entropies and cross-entropies of tokens without ever holding [positions, vocabulary]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from grouprl.policy.autograd import Ctx
from grouprl.policy.devices import Precision
from grouprl.policy.passes import chunk_rows
from grouprl.policy.products import LinearGradients, linear

KEPT_BYTES = 2**27
"""Bytes of distributions that are kept for the backward pass; beyond this they are recomputed there, chunk by chunk."""

VOCABULARY = 2**13
"""Vocabulary entries whose gradients are multiplied at a time in mixed precision."""


class TokenScores(NamedTuple):
    """The result of `token_logprobs`, each [M]; None for what was not requested."""

    logp_m: torch.Tensor
    entropy_m: torch.Tensor | None
    cross_m: torch.Tensor | None


def token_logprobs(
    hidden_md: torch.Tensor,
    weight_vd: torch.Tensor,
    bias_v: torch.Tensor | None,
    target_m: torch.Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    cross: float | None = None,
    chunk_elements: int | None = None,
    precision: Precision = "float32",
) -> TokenScores:
    """Score `target_m` under π = softmax(z / temperature), z = hidden @ weight.T + bias.

    Positions are taken in chunks of at most `chunk_elements` logits (at least one position); beyond `KEPT_BYTES` the
    backward pass recomputes each chunk, and no tensor grows with the vocabulary times the positions. `precision` is the
    precision of products; in mixed precision logits are not rounded if the device is a CPU.

    Returns:
        logp_m and, if requested, entropy_m and cross_m in nats: [M], float32 (float64 for float64 models), all
        differentiable. cross_m is Σ_a q_a log π_a with q = softmax(z / cross) held constant.
    """
    rows = chunk_rows(hidden_md.device.type, weight_vd.shape[0], chunk_elements)
    numbers, plain = len(hidden_md) * len(weight_vd), cross is None and torch.is_grad_enabled()
    if precision == "mixed" and plain and not entropy and numbers * torch.bfloat16.itemsize <= KEPT_BYTES:
        return TokenScores(mixed_logprobs(hidden_md, weight_vd, bias_v, target_m, temperature, rows), None, None)
    # Not with `cross`, whose gradient needs the logits, and not only the log-probs that would be kept.
    keeps = plain and numbers * max(weight_vd.itemsize, torch.float32.itemsize) <= KEPT_BYTES
    logp_m, entropy_m, cross_m = _TokenLogprobs.apply(
        hidden_md, weight_vd, bias_v, target_m, temperature, entropy, cross, rows, precision, keeps
    )
    return TokenScores(logp_m, entropy_m if entropy else None, cross_m if cross is not None else None)


def chunks(count: int, rows: int) -> Iterator[slice]:
    """Yield slices of at most `rows` that cover `count` positions."""
    return (slice(start, min(start + rows, count)) for start in range(0, count, rows))


def log_softmax_of(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return log softmax(logits / temperature) over the last axis in float32 or better."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.log_softmax(wide / temperature if temperature != 1.0 else wide, dim=-1)


def entropy_of(logp: torch.Tensor) -> torch.Tensor:
    """Return the entropy in nats of normalised log-probabilities over the last axis."""
    return -(logp.exp() * logp).sum(-1)


def softened(logits: torch.Tensor, logp: torch.Tensor, temperature: float, cross: float) -> torch.Tensor:
    """Return q = softmax(logits / cross) without gradient; bitwise equal to exp(logp) if both temperatures are
    equal.
    """
    return (logp if cross == temperature else log_softmax_of(logits, cross)).detach().exp()


class _TokenLogprobs(torch.autograd.Function):
    """Scores with gradients with respect to the logits z, each divided by the temperature.

    d logp / dz = onehot - p; d entropy / dz = -p (log p + entropy); d cross / dz = q - p.
    """

    @staticmethod
    def forward(
        ctx: Ctx,
        hidden_md: torch.Tensor,
        weight_vd: torch.Tensor,
        bias_v: torch.Tensor | None,
        target_m: torch.Tensor,
        temperature: float,
        entropy: bool,
        cross: float | None,
        rows: int,
        precision: Precision,
        keeps: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ctx.kept = list[torch.Tensor]()
        dtype = torch.float64 if hidden_md.dtype == torch.float64 else torch.float32
        logp_m = torch.empty(len(hidden_md), dtype=dtype, device=hidden_md.device)
        entropy_m, cross_m = torch.zeros_like(logp_m), torch.zeros_like(logp_m)
        for part in chunks(len(hidden_md), rows):
            logits_cv = linear(hidden_md[part], weight_vd, bias_v, precision)
            logp_cv = log_softmax_of(logits_cv, temperature)
            logp_m[part] = logp_cv.gather(1, target_m[part, None])[:, 0]
            if entropy:
                entropy_m[part] = entropy_of(logp_cv)
            if cross is not None:
                cross_m[part] = (softened(logits_cv, logp_cv, temperature, cross) * logp_cv).sum(-1)
            if keeps:
                ctx.kept.append(logp_cv)
        ctx.save_for_backward(hidden_md, weight_vd, bias_v, target_m)
        ctx.temperature, ctx.entropy, ctx.cross = temperature, entropy, cross
        ctx.rows, ctx.precision = rows, precision
        return logp_m, entropy_m, cross_m

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Ctx, grad_logp_m: torch.Tensor, grad_entropy_m: torch.Tensor, grad_cross_m: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        hidden_md, weight_vd, bias_v, target_m = ctx.saved_tensors
        gradients = LinearGradients(hidden_md, weight_vd, ctx.needs_input_grad[:3], ctx.precision)
        for number, part in enumerate(chunks(len(hidden_md), ctx.rows)):
            if ctx.kept:
                logp_cv = ctx.kept[number]
            else:
                logits_cv = linear(hidden_md[part], weight_vd, bias_v, ctx.precision)
                logp_cv = log_softmax_of(logits_cv, ctx.temperature)
            pull_cv = None
            if ctx.cross is not None:
                q_cv = softened(logits_cv, logp_cv, ctx.temperature, ctx.cross)
                pull_cv = q_cv.sub_(logp_cv.exp()).mul_(grad_cross_m[part, None])
            grad_cv = _grad_logits(
                logp_cv, target_m[part], grad_logp_m[part], grad_entropy_m[part] if ctx.entropy else None
            )
            if pull_cv is not None:
                grad_cv += pull_cv
            gradients.add(part, grad_cv.div_(ctx.temperature))
        return *gradients.found(), *[None] * 7


def _grad_logits(
    logp_cv: torch.Tensor, target_c: torch.Tensor, grad_logp_c: torch.Tensor, grad_entropy_c: torch.Tensor | None
) -> torch.Tensor:
    p_cv = logp_cv.exp()
    if grad_entropy_c is None:
        grad_cv = p_cv.mul_(-grad_logp_c[:, None])
    else:
        surprise_cv = logp_cv - (p_cv * logp_cv).sum(-1, keepdim=True)
        grad_cv = p_cv.mul_(-surprise_cv * grad_entropy_c[:, None] - grad_logp_c[:, None])
    return grad_cv.scatter_add_(1, target_c[:, None], grad_logp_c[:, None])


def mixed_logprobs(
    hidden_md: torch.Tensor,
    weight_vd: torch.Tensor,
    bias_v: torch.Tensor | None,
    target_m: torch.Tensor,
    temperature: float,
    rows: int,
) -> torch.Tensor:
    """Return the log-probs [M] of `token_logprobs` in mixed precision; the factors of its gradients are kept,
    rounded.
    """
    return _MixedLogprobs.apply(hidden_md, weight_vd, bias_v, target_m, temperature, rows)


class _MixedLogprobs(torch.autograd.Function):
    """Log-probs that keep d logp / dz = onehot - p rounded to bfloat16, as the products of the gradients need it."""

    @staticmethod
    def forward(
        ctx: Ctx,
        hidden_md: torch.Tensor,
        weight_vd: torch.Tensor,
        bias_v: torch.Tensor | None,
        target_m: torch.Tensor,
        temperature: float,
        rows: int,
    ) -> torch.Tensor:
        logp_m = hidden_md.new_empty(len(hidden_md))
        slope_mv = hidden_md.new_empty(len(hidden_md), len(weight_vd), dtype=torch.bfloat16)
        for part in chunks(len(hidden_md), rows):
            logits_cv = linear(hidden_md[part], weight_vd, bias_v, "mixed")
            logits_cv = logits_cv if temperature == 1.0 else logits_cv.div_(temperature)
            target_c1 = target_m[part, None]
            p_cv = torch.softmax(logits_cv, -1)  # several times faster than log_softmax on a CPU
            # The largest probability is one over the sum of all exp(logit - largest logit).
            sum_c1 = logits_cv.amax(-1, keepdim=True) - p_cv.amax(-1, keepdim=True).log()
            logp_m[part] = (logits_cv.gather(1, target_c1) - sum_c1)[:, 0]
            p_cv.scatter_add_(1, target_c1, p_cv.new_full((), -1.0).expand(target_c1.shape))
            slope_mv[part] = p_cv.neg_()
        ctx.save_for_backward(hidden_md, weight_vd, bias_v, slope_mv)
        ctx.temperature = temperature
        return logp_m

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad_logp_m: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_md, weight_vd, bias_v, slope_mv = ctx.saved_tensors
        factor_m1 = grad_logp_m[:, None] / ctx.temperature
        pulled_md = (hidden_md * factor_m1).bfloat16()
        grad_hidden = torch.zeros_like(hidden_md) if ctx.needs_input_grad[0] else None
        grad_weight = torch.empty_like(weight_vd) if ctx.needs_input_grad[1] else None
        grad_bias = None
        for part in chunks(len(weight_vd), VOCABULARY):  # avoids a rounded copy of the whole weight or its gradient
            if grad_hidden is not None:
                grad_hidden += slope_mv[:, part] @ weight_vd[part].bfloat16()
            if grad_weight is not None:
                grad_weight[part] = slope_mv[:, part].T @ pulled_md
        if grad_hidden is not None:
            grad_hidden *= factor_m1
        if bias_v is not None and ctx.needs_input_grad[2]:
            grad_bias = (slope_mv.T @ factor_m1.bfloat16()).float()[:, 0]
        return grad_hidden, grad_weight, grad_bias, None, None, None
