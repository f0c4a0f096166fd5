"""Smooth surrogates in place of a hard clip: a smooth gate on the ratio, a geometric mean of clipped ratios."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Bound, Surrogate, idle_ratio
from grouprl.algorithms.objective.ratio import Against, RatioLevel, held, log_ratio, ratio_code, symbol
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.token_gate.token_gate import top_entropy
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive, Share
from grouprl.core.outputs import ENTROPY


@part("objective")
class SoftGate(Surrogate):
    """SAPO: -(4/τ)·sigmoid(τ(ρ-1))·A, τ by the sign of A (Soft Adaptive Policy Optimization, Qwen 2025).

    The gradient's weight 4q(1-q)·ρ, q = sigmoid(τ(ρ-1)), is 1 at ρ = 1 and fades on both sides instead of being cut.
    """

    tau_positive: Positive = 1.0
    tau_negative: Positive = 1.05
    ratio: RatioLevel = "token"
    against: Against = "old"
    says = (
        "a smooth gate on the ratio instead of a clip: full gradient at 1, fading on both sides (temperature "
        "{tau_positive:g} where A > 0, {tau_negative:g} elsewhere)"
    )
    reads = ("{against}_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -(4/τ)·sigmoid(τ(ρ_t - 1))·A_t."""
        adv_bt = batch.need("advantage_bt", self.name)
        tau_bt = torch.full_like(adv_bt, self.tau_negative).masked_fill(adv_bt > 0, self.tau_positive)
        ratio_bt = log_ratio(logp_bt, batch, self.ratio, self.against).exp()
        gate_bt = torch.sigmoid(tau_bt * (ratio_bt - 1))
        keep_bt = 4 * gate_bt * (1 - gate_bt)
        return TokenLoss(-4 / tau_bt * gate_bt * adv_bt, {"gate_mean": keep_bt})

    @override
    def code(self) -> str:
        tau = f"torch.full_like(adv_bt, {self.tau_negative!r}).masked_fill(adv_bt > 0, {self.tau_positive!r})"
        gate = "loss_bt = -4 / tau_bt * torch.sigmoid(tau_bt * (ratio_bt - 1)) * adv_bt"
        return "\n".join([f"tau_bt = {tau}", *ratio_code(self.ratio, self.against), gate])

    @override
    def formula(self) -> str:
        return f"-(4/τ)·sigmoid(τ(ρ-1))·A,  {symbol(self.ratio, self.against)}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the gate has no effect if the ratio is always 1."""
        return idle_ratio(run, self.against, "the soft gate")


@part("objective")
class GeometricMean(Surrogate):
    """GMPO: the geometric mean of clipped token ratios times A (arXiv:2507.20673).

    c_t = log ρ_t, at most `clip_high` where A > 0 and at least -`clip_low` where A < 0 (limits in log space, so
    0.4 means ρ in [e^-0.4, e^0.4]); g = exp(mean_t c_t); loss -g·A on every token of the sequence.
    """

    clip_low: Bound = 0.4
    clip_high: Bound = 0.4
    against: Against = "old"
    says = (
        "the geometric mean of each completion's token ratios, each token clipped beforehand against its "
        "advantage's direction at e^{clip_high:g} and e^-{clip_low:g}"
    )
    equation = "-exp(1/|y| Σ_t c_t)·A,  c = min(log ρ, {clip_high:g}) if A>0, max(log ρ, -{clip_low:g}) if A<0"
    reads = ("{against}_bt",)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return f"""log_bt = torch.where(active_bt, logp_bt - {self.against}_bt, 0)
log_bt = torch.where((adv_bt > 0) & (log_bt > {self.clip_high!r}), {self.clip_high!r}, log_bt)
log_bt = torch.where((adv_bt < 0) & (log_bt < {-self.clip_low!r}), {-self.clip_low!r}, log_bt)
mean_b = torch.where(adv_bt != 0, log_bt, 0).sum(1) / active_bt.sum(1).clamp(min=1)
loss_bt = -held(mean_b, low=None).exp()[:, None] * adv_bt"""

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -exp(mean_t c_t)·A."""
        adv_bt = batch.need("advantage_bt", self.name)
        active_bt = batch.active_bt
        log_bt = torch.where(active_bt, logp_bt - batch.need(f"{self.against}_bt", self.name), 0)
        above_bt, below_bt = (adv_bt > 0) & (log_bt > self.clip_high), (adv_bt < 0) & (log_bt < -self.clip_low)
        clipped_bt = torch.where(above_bt, self.clip_high, torch.where(below_bt, -self.clip_low, log_bt))
        counted_bt = self.counted(batch)
        mean_b = torch.where(counted_bt & (adv_bt != 0), clipped_bt, 0).sum(1) / counted_bt.sum(1).clamp(min=1)
        metrics = {
            "clip_fraction": (above_bt | below_bt).to(adv_bt.dtype),
            "clip_fraction_high": above_bt.to(adv_bt.dtype),
            "clip_fraction_low": below_bt.to(adv_bt.dtype),
        }
        return TokenLoss(-held(mean_b, low=None).exp()[:, None] * adv_bt, metrics)

    def counted(self, batch: Batch) -> Tensor:
        """Return [B,T] bool: the tokens that the geometric mean is taken over."""
        return batch.active_bt

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the clip has no effect if the ratio is always 1."""
        return idle_ratio(run, self.against, f"the clip at e^±({self.clip_low:g}, {self.clip_high:g})")


@part("objective")
class TopEntropyMean(GeometricMean):
    """GMPO's geometric mean over the tokens of the optimiser step with the largest current entropies (TRL).

    The threshold is the (1 - share)-quantile over the step's tokens. A completion none of whose tokens reaches it has
    the mean 1 and no gradient.
    """

    share: Share = 0.2
    couples: ClassVar[str] = "batch"
    asks = (ENTROPY,)

    @override
    def counted(self, batch: Batch) -> Tensor:
        """Return [B,T] bool: tokens whose entropy is at least the quantile."""
        return top_entropy(batch.stats.get(ENTROPY), batch, self.share, f"the objective {self.name}")

    @override
    def code(self) -> str:
        return ""

    @override
    def words(self) -> str:
        which = f"the {self.share:.0%} of the optimiser step's tokens with the largest current entropy"
        return f"{super().words()}; of {which} only"

    @override
    def formula(self) -> str:
        return super().formula().replace("1/|y| Σ_t c_t", "mean of c_t over H_t ≥ quantile")
