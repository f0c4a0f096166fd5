"""KL of a policy's distributions to a teacher's, over the whole vocabulary, without ever holding [positions, V]."""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from grouprl.policy.autograd import Ctx
from grouprl.policy.devices import Precision
from grouprl.policy.engine import Readout
from grouprl.policy.logprobs import chunks, log_softmax_of
from grouprl.policy.passes import chunk_rows
from grouprl.policy.products import LinearGradients, linear


def kl_to_teacher(own: Readout, teacher: Readout, temperature: float) -> torch.Tensor:
    """Return KL(π || p) of each response token's distribution in nats, [M], with gradient in the policy's alone.

    Both are softmax(z / temperature). Models of a family may pad their vocabularies differently: the columns that only
    one of them has are not tokens, and are left out of both.
    """
    teacher, states_nd = own.taught_by(teacher), own.own_states
    common = min(own.vocabulary, teacher.vocabulary)
    rows = chunk_rows(states_nd.device.type, common)
    if own.head is None:
        logits_nv = own.own_logits[:, :common]
        parts = [kl_of(logits_nv[part], teacher.logits(part), temperature)[0] for part in chunks(len(logits_nv), rows)]
        return own.joined(torch.cat([*parts, logits_nv.new_zeros(0)]))
    weight_vd, bias_v = own.head.weight_vd[:common], own.head.bias_v
    bias_v = None if bias_v is None else bias_v[:common]
    found: torch.Tensor = _TeacherKL.apply(states_nd, weight_vd, bias_v, teacher, temperature, rows, own.head.precision)
    return own.joined(found)


def kl_of(
    logits_cv: torch.Tensor, teacher_cv: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return KL(π || p) [C], π and log(π/p) [C,V] of two sets of logits; the teacher's may have further columns."""
    logp_cv = log_softmax_of(logits_cv, temperature)
    teacher_cv = teacher_cv.to(logits_cv.device)[:, : logits_cv.shape[1]]
    gap_cv = logp_cv - log_softmax_of(teacher_cv, temperature)
    p_cv = logp_cv.exp()
    return (p_cv * gap_cv).sum(-1), p_cv, gap_cv


class _TeacherKL(torch.autograd.Function):
    """The KL with its gradient in the logits z, d KL / dz = π (log(π/p) - KL), recomputed chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Ctx,
        hidden_md: torch.Tensor,
        weight_vd: torch.Tensor,
        bias_v: torch.Tensor | None,
        teacher: Readout,
        temperature: float,
        rows: int,
        precision: Precision,
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden_md, weight_vd, bias_v)
        ctx.teacher, ctx.temperature, ctx.rows, ctx.precision = teacher, temperature, rows, precision
        found = [
            kl_of(linear(hidden_md[part], weight_vd, bias_v, precision), teacher.logits(part), temperature)[0]
            for part in chunks(len(hidden_md), rows)
        ]
        return torch.cat(found) if found else hidden_md.new_zeros(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad_m: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_md, weight_vd, bias_v = ctx.saved_tensors
        gradients = LinearGradients(hidden_md, weight_vd, ctx.needs_input_grad[:3], ctx.precision)
        for part in chunks(len(hidden_md), ctx.rows):
            logits_cv = linear(hidden_md[part], weight_vd, bias_v, ctx.precision)
            kl_c, p_cv, gap_cv = kl_of(logits_cv, ctx.teacher.logits(part), ctx.temperature)
            slope_cv = p_cv * (gap_cv - kl_c[:, None])
            gradients.add(part, slope_cv * (grad_m[part, None] / ctx.temperature))
        return *gradients.found(), *[None] * 4
