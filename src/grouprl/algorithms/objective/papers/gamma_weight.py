"""VESPO: the ratio of whole completions, softened by a gamma-shaped weight (arXiv:2602.10693)."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Surrogate, idle_ratio
from grouprl.algorithms.objective.ratio import LOG_LIMIT, Against, log_ratio
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.token_weight.token_weight import mismatch_ratio
from grouprl.core.batch import Batch

Power = Annotated[float, Field(ge=0)]
LEAST = math.log(1e-8)
"""Smallest logarithm of a completion's ratio, as in TRL."""


@part("objective")
class GammaWeight(Surrogate):
    """-φ(w)·A·log π with φ(w) = w^k·e^{λ(1-w)}, w = π(y)/π_old(y) of the whole completion, not differentiated (VESPO).

    φ is 1 at w = 1, largest at w = k/λ, and fades on both sides; (k, λ) have a pair for A ≥ 0 and one for A < 0.
    """

    k_positive: Power = 2.0
    lambda_positive: Power = 3.0
    k_negative: Power = 3.0
    lambda_negative: Power = 2.0
    against: Against = "old"
    says = (
        "push each token's log-prob by its advantage times a weight of its whole completion's ratio w, "
        "w^k·e^(λ(1-w)): k {k_positive:g}, λ {lambda_positive:g} where A ≥ 0, k {k_negative:g}, λ "
        "{lambda_negative:g} where A < 0"
    )
    equation = "-sg[w^k·e^(λ(1-w))]·A·log π(y_t),  w = π(y)/π_old(y)"
    reads: ClassVar[tuple[str, ...]] = ("{against}_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -φ(w)·A_t·log π(y_t)."""
        adv_bt = batch.need("advantage_bt", self.name)
        log_b = self.log_completion(logp_bt.detach(), batch).clamp(LEAST, LOG_LIMIT)
        log_bt = log_b[:, None].expand_as(adv_bt)
        k_bt = torch.full_like(adv_bt, self.k_negative).masked_fill(adv_bt >= 0, self.k_positive)
        lambda_bt = torch.full_like(adv_bt, self.lambda_negative).masked_fill(adv_bt >= 0, self.lambda_positive)
        weight_bt = (k_bt * log_bt + lambda_bt.clamp(min=1e-4) * (1 - log_bt.exp())).exp()
        return TokenLoss(-weight_bt * adv_bt * logp_bt, {"gate_mean": weight_bt})

    def log_completion(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return [B] log w of whole completions."""
        return log_ratio(logp_bt, batch, "token", self.against).sum(1)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        log = f"torch.where(active_bt, logp_bt.detach() - {self.against}_bt, 0)"
        return f"""log_b1 = held({log}).sum(1, keepdim=True).clamp({LEAST!r}, 20)
k_bt = torch.full_like(adv_bt, {self.k_negative!r}).masked_fill(adv_bt >= 0, {self.k_positive!r})
lambda_bt = torch.full_like(adv_bt, {self.lambda_negative!r}).masked_fill(adv_bt >= 0, {self.lambda_positive!r})
gamma_bt = (k_bt * log_b1 + lambda_bt.clamp(min=1e-4) * (1 - log_b1.exp())).exp()
loss_bt = -gamma_bt * adv_bt * logp_bt"""

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the weight has no effect if the ratio is always 1."""
        return idle_ratio(run, self.against, "the gamma weight")


@part("objective")
class CorrectedGammaWeight(GammaWeight):
    """VESPO whose ratio goes back to the sampler: w = Π_t ρ_t·min(π_old/π_behavior, cap), as TRL computes it.

    Token ratios of trainer to sampler outside [floor, cap] are clamped ("truncate") or count 1e-8 ("mask").
    """

    floor: Annotated[float, Field(ge=0)] | None = None
    cap: Annotated[float, Field(gt=0)] | None = 3.0
    beyond: Literal["truncate", "mask"] = "truncate"
    reads = ("old_bt", "behavior_bt")

    def log_completion(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return [B] log w of whole completions, from the sampler to the policy."""
        floor, cap = self.floor or 0.0, math.inf if self.cap is None else self.cap
        ratio_bt = mismatch_ratio(batch, "token")
        held_bt = ratio_bt.clamp(floor, cap)
        if self.beyond == "mask":
            held_bt = torch.where(held_bt == ratio_bt, ratio_bt, 0)
        return super().log_completion(logp_bt, batch) + held_bt.log().clamp(LEAST, LOG_LIMIT).sum(1)

    @override
    def words(self) -> str:
        bounds = f"[{self.floor or 0:g}, {math.inf if self.cap is None else self.cap:g}]"
        way = "clamped to" if self.beyond == "truncate" else "left out beyond"
        return f"{super().words()}; w goes back to the sampler, its token ratios {way} {bounds}"

    @override
    def formula(self) -> str:
        return super().formula().replace("π(y)/π_old(y)", "π(y)/π_old(y) · Π_t clip(π_old/π_b)(y_t)")
