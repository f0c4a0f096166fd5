"""Terms on completions that were sampled beside the policy's own: an opponent's, or unlabelled ones."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.preferences import OPPONENT, is_opponent
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative

WEIGHT = "weight.opponents"
"""Name of the weights of opponents' completions among a step's statistics."""


class OnOpponents(Regularizer):
    """Base: a mean over the completions of an opponent, whether or not they are in the policy loss."""

    reads = (f"keys.{OPPONENT}",)
    idle_at = ("coef", 0, "{name} has no effect: its coefficient is 0")

    def compute_loss_weights(self, batch: Batch) -> Batch:
        """Return an optimiser step in which each opponent's completion with tokens weighs the same, on its tokens."""
        own_bt = batch.mask_bt & is_opponent(batch, self.name)[:, None]
        rows = own_bt.any(1).sum().clamp(min=1)
        weight_bt = own_bt.to(batch.dtype) / (own_bt.sum(1, keepdim=True).clamp(min=1) * rows)
        return batch.replace(stats={**batch.stats, WEIGHT: weight_bt})

    def weights(self, batch: Batch) -> Tensor:
        """Return [B,T] weights whose sum over a completion's tokens is 1 / number of opponents' completions."""
        weight_bt: Tensor = batch.need(f"stats.{WEIGHT}", self.name)
        return weight_bt


def on_tokens(loss_b: Tensor, batch: Batch) -> TokenLoss:
    """Return losses of whole completions on each of their tokens, also of those that are not in the policy loss."""
    return TokenLoss(loss_b[:, None] * batch.mask_bt)


FAR = f"far_bt = mask_bt & (keys['{OPPONENT}'] == 1)[:, None]\n"
"""Lines of plain torch that mark the tokens of an opponent's completions."""


@part("regularize")
class Unlikely(OnOpponents):
    """α times log π of an opponent's completions, summed over tokens: known answers lose likelihood, so that others
    gain it (XPO, arXiv:2405.21046; VPO, arXiv:2405.19320, whose term is αβ·log π/π_ref).
    """

    coef: NonNegative = 1e-5
    says = "{coef:g} times the log-prob of the opponent's completions: the policy is to write others"
    equation = "+ {coef:g} · mean over opponents' y of Σ_t log π(y_t)"
    plain = FAR + "loss = loss + {coef!r} * torch.where(far_bt, logp_bt, 0).sum() / far_bt.any(1).sum().clamp(min=1)"

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return α·log π(y)."""
        return on_tokens(self.coef * logp_bt.sum(1), batch)


@part("regularize")
class SampledKL(OnOpponents):
    """λ·KL(π || π_ref), from completions that π samples beside the data (HyPO, arXiv:2406.01462).

    The gradient of λ·E_π[d], d = log π/π_ref of a completion: λ·(d_i - mean of the prompt's others)·∇log π(y_i), the
    factor detached. A completion that is alone has no baseline. The value is the estimate λ·d.
    """

    couples: ClassVar[str] = "group"
    coef: NonNegative = 0.01
    says = "{coef:g} times KL to the reference model, from completions that the policy samples beside the data"
    equation = "+ {coef:g} · KL(π || π_ref),  y ~ π,  leave-one-out"
    plain = (
        FAR + "far_b, logp_b = far_bt.any(1), torch.where(far_bt, logp_bt, 0).sum(1)\n"
        "d_b = logp_b.detach() - torch.where(far_bt, ref_bt, 0).sum(1)\n"
        "far_bb = (group_b[:, None] == group_b) & far_b\n"
        "others_b = ((far_bb * d_b).sum(1) - d_b) / (far_bb.sum(1) - 1).clamp(min=1)\n"
        "slope_b = (d_b - others_b) * logp_b\n"
        "kl_b = far_b * (d_b + slope_b - slope_b.detach())\n"
        "loss = loss + {coef!r} * kl_b.sum() / far_b.sum().clamp(min=1)"
    )

    @override
    def needs(self) -> tuple[str, ...]:
        return (*super().needs(), "ref_bt")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return λ·d with the gradient of λ·(d - baseline)·log π."""
        own_b = is_opponent(batch, self.name) & batch.mask_bt.any(1)
        logp_b = logp_bt.sum(1)
        log_b = logp_b.detach() - batch.need("ref_bt", self.name).sum(1)
        rows_b = levels.count(batch.group_b, own_b, log_b.dtype)
        total_b = levels.total(log_b, batch.group_b, own_b)
        others_b = (total_b - log_b) / (rows_b - 1).clamp(min=1)
        slope_b = (log_b - others_b) * logp_b
        return on_tokens(self.coef * (log_b + slope_b - slope_b.detach()), batch)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        return [] if run.has_reference else [f"{self.name} needs a reference model. Set model.reference: initial"]
