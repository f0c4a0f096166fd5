"""Trust regions and masks for completions that earlier policies sampled, token by token.

Three policies take part: the one that sampled a token (behaviour), the one at the start of the update (proximal), and
the one being trained. The first two differ when completions are sampled ahead of their update.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Bound, LowBound, Surrogate, clipped
from grouprl.algorithms.objective.ratio import log_ratio, ratio_code
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch

Beyond = Literal["mask", "truncate"]
"""The treatment of a behaviour weight above its cap: the token is left out ("mask"), or the weight is the cap."""


def interpolation(batch: Batch) -> Tensor:
    """Return [B,T] α = (v - v_b) / (v + 1 - v_b): where the proximal policy v lies between behaviour v_b and the next
    one.

    v is `batch.step`; 0 where no version is known: the token is the current policy's.
    """
    if batch.version_bt is None:
        return torch.zeros_like(batch.mask_bt, dtype=batch.dtype)
    age_bt = (batch.need("step", "the interpolated proximal policy") - batch.version_bt).clamp(min=0)
    return torch.where(batch.mask_bt, age_bt, 0).to(batch.dtype) / (age_bt + 1)


@part("objective")
class InterpolatedClip(Surrogate):
    """Decoupled PPO whose proximal log-probs are interpolated instead of computed (AReaL, arXiv:2505.24298).

    log π_prox = log π_b + α·(sg[log π] - log π_b) with α of `interpolation`: 0 for tokens of the current policy, near 1
    for old ones. The loss is w·max(-Aρ, -A·clip(ρ)), ρ = π/π_prox, w = π_prox/π_b not differentiated; where w is above
    `cap`, the token is left out ("mask") or weighs the cap ("truncate"). Denominators do not change.
    """

    clip_low: LowBound = 0.2
    clip_high: Bound = 0.2
    cap: Bound | None = 5.0
    beyond: Beyond = "mask"
    reads = ("behavior_bt", "step")

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return w_t·max(-A ρ_t, -A clip(ρ_t, 1-clip_low, 1+clip_high))."""
        adv_bt = batch.need("advantage_bt", self.name)
        gap_bt = log_ratio(logp_bt, batch, "token", "behavior")
        moved_bt = interpolation(batch) * gap_bt.detach()
        ratio_bt, weight_bt = (gap_bt - moved_bt).exp(), moved_bt.exp()
        held_bt, capped_bt = _held(weight_bt, self.cap, self.beyond)
        found = clipped(ratio_bt, adv_bt, 1 - self.clip_low, 1 + self.clip_high)
        return TokenLoss(held_bt * found.loss_bt, {**found.metrics, "capped_fraction": capped_bt})

    @override
    def words(self) -> str:
        above = "" if self.cap is None else f"; above {self.cap:g} it is {_ABOVE[self.beyond]}"
        return (
            f"PPO clip [{1 - self.clip_low:g}, {1 + self.clip_high:g}] around a proximal policy interpolated "
            "between the one "
            f"that sampled the token and the current one, times its distance from the former{above}"
        )

    @override
    def formula(self) -> str:
        return (
            f"-sg[w_t]·min(ρ·A, clip(ρ, {1 - self.clip_low:g}, {1 + self.clip_high:g})·A),  ρ = π/π_prox, "
            "w = π_prox/π_b, "
            "log π_prox = (1-α)·log π_b + α·sg[log π], α = (v - v_b)/(v + 1 - v_b)"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the interpolation has no effect without completions of older policies."""
        if run.async_steps:
            return []
        return [
            "the interpolated proximal policy has no effect: run.async_steps is 0, so every completion is from the "
            "current policy"
        ]


_ABOVE = {"mask": "left out", "truncate": "that"}


def _held(weight_bt: Tensor, cap: float | None, beyond: Beyond) -> tuple[Tensor, Tensor]:
    """Return weights [B,T] clamped to `cap`, and 1 where that changed them."""
    if cap is None:
        return weight_bt, torch.zeros_like(weight_bt)
    above_bt = weight_bt > cap
    held_bt = torch.where(above_bt, 0.0 if beyond == "mask" else cap, weight_bt)
    return held_bt, above_bt.to(weight_bt.dtype)


@part("objective")
class ProbabilityMask(Surrogate):
    """-M·ρ·A, ρ = π/π_b; M drops tokens whose probability has moved far in the direction of A (prime-rl's DPPO mask).

    Dropped are A > 0 with π - π_b > `clip_high`, and A < 0 with π - π_b < -`clip_low`: differences of probabilities,
    so that likely tokens are cut off, but rare ones, whose ratio jumps by rounding alone, are not.
    """

    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0, le=1)] = 0.2
    says = (
        "advantage times the ratio to the sampler; a token whose probability has risen by more than {clip_high:g} "
        "with a good completion, or fallen by more than {clip_low:g} with a bad one, is left out"
    )
    equation = "-ρ_t·A_t·[π - π_b ≤ {clip_high:g} if A>0, π - π_b ≥ -{clip_low:g} if A<0],  ρ_t = π(y_t)/π_b(y_t)"
    reads = ("behavior_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -M_t·ρ_t·A_t."""
        adv_bt, behavior_bt = batch.need("advantage_bt", self.name), batch.need("behavior_bt", self.name)
        ratio_bt = log_ratio(logp_bt, batch, "token", "behavior").exp()
        moved_bt = torch.where(batch.active_bt, logp_bt.detach().exp() - behavior_bt.exp(), 0)
        above_bt = ((moved_bt > self.clip_high) & (adv_bt > 0)).to(adv_bt.dtype)
        below_bt = ((moved_bt < -self.clip_low) & (adv_bt < 0)).to(adv_bt.dtype)
        metrics = {
            "clip_fraction": above_bt + below_bt,
            "clip_fraction_high": above_bt,
            "clip_fraction_low": below_bt,
        }
        return TokenLoss(-(1 - above_bt - below_bt) * ratio_bt * adv_bt, metrics)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        above, below = f"(moved_bt > {self.clip_high!r})", f"(moved_bt < {-self.clip_low!r})"
        return "\n".join(
            [
                *ratio_code("token", "behavior"),
                "moved_bt = torch.where(active_bt, logp_bt.detach().exp() - behavior_bt.exp(), 0)",
                f"out_bt = {above} & (adv_bt > 0) | {below} & (adv_bt < 0)",
                "loss_bt = -adv_bt * ratio_bt * ~out_bt",
            ]
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that nothing is dropped if the policy cannot have moved."""
        if run.async_steps or run.updates_per_rollout > 1 or not run.exact_sampler:
            return []
        return ["the probability mask cannot act: with one update per rollout the policy is the sampler"]
