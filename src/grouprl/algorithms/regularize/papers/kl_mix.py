"""Divergences to the reference, mixed (RSPO)."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.ratio import held
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.regularize.regularize import OwnAggregate, Regularizer
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("regularize")
class KLMix(Regularizer):
    """λ times a mixture of reverse KL(π || π_ref), forward KL(π_ref || π) and χ² (RSPO, arXiv:2503.00030).

    On tokens that π sampled their gradients are those of d²/2, e^{-d} - 1 + d and 2(e^d - 1 - d), d = log π/π_ref: the
    last is χ²(π || π_ref). All vanish at π = π_ref. `aggregate` sums a completion's tokens, as the divergences of whole
    completions do.
    """

    coef: NonNegative = 1.0
    reverse: NonNegative = 0.05
    forward: NonNegative = 0.05
    chi_square: NonNegative = 0.0
    aggregate: OwnAggregate = "sequence_sum"
    reads = ("ref_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return λ·[reverse·d²/2 + forward·(e^{-d} - 1 + d) + chi_square·2(e^d - 1 - d)]."""
        log_bt = torch.where(batch.active_bt, logp_bt - batch.need("ref_bt", self.name), 0)
        mixed_bt = self.reverse * log_bt.square() / 2
        mixed_bt = mixed_bt + self.forward * (torch.expm1(held(-log_bt)) + log_bt)
        mixed_bt = mixed_bt + self.chi_square * 2 * (torch.expm1(held(log_bt)) - log_bt)
        return TokenLoss(self.coef * mixed_bt, {"kl_ref": log_bt})

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        terms = {
            "d_bt.square() / 2": self.reverse,
            "(torch.expm1(held(-d_bt)) + d_bt)": self.forward,
            "2 * (torch.expm1(held(d_bt)) - d_bt)": self.chi_square,
        }
        mixed = " + ".join(f"{weight!r} * {term}" for term, weight in terms.items() if weight > 0)
        lines = ["d_bt = torch.where(active_bt, logp_bt - ref_bt, 0)", f"mixed_bt = {mixed or '0 * d_bt'}"]
        return "\n".join([*lines, self.added("mixed_bt")])

    @override
    def words(self) -> str:
        shares = {"reverse KL": self.reverse, "forward KL": self.forward, "χ²": self.chi_square}
        mixed = " and ".join(f"{weight:g} of {name}" for name, weight in shares.items() if weight > 0) or "nothing"
        return f"{self.coef:g} times a distance to the reference model, {mixed}"

    @override
    def formula(self) -> str:
        terms = [f"{self.reverse:g}·d²/2", f"{self.forward:g}·(e^-d - 1 + d)", f"{self.chi_square:g}·2(e^d - 1 - d)"]
        return f"+ {self.coef:g} · [{' + '.join(terms)}],  d = log π(y_t) - log π_ref(y_t)"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if all its coefficients are 0."""
        none = self.coef == 0 or not (self.reverse or self.forward or self.chi_square)
        return ["kl_mix has no effect: its coefficients are 0"] if none else []

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        return [] if run.has_reference else ["kl_mix needs a reference model. Set model.reference: initial"]
