"""Entropy control by covariance: tokens that are likely *and* good collapse the entropy, so they are held back.

c_t = (A_t - mean A)(log π_t - mean log π), means over the tokens of the optimiser step, detached (arXiv:2505.22617).
The whole step must be seen together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.objectives.objective import OLD_BOUNDS, Bound, LowBound, Objective, clip_metrics
from grouprl.algorithms.objectives.ratio import log_ratio
from grouprl.algorithms.objectives.regression import log_distance
from grouprl.algorithms.part import RunFacts, TokenLoss, part
from grouprl.algorithms.token_weights.token_selection import hashed
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import PositiveShare


def covariance(logp_bt: Tensor, batch: Batch) -> Tensor:
    """[B,T] (A_t - mean A)(log π_t - mean log π) over active tokens, zero elsewhere."""
    active_bt = batch.active_bt
    adv_bt, logp_bt = batch.need("advantage_bt", "covariance"), logp_bt.detach()
    around_bt = [x - x[active_bt].mean() for x in (adv_bt, logp_bt)]
    return torch.where(active_bt, around_bt[0] * around_bt[1], 0)


def first(score_bt: Tensor, candidate_bt: Tensor, count: int) -> Tensor:
    """[B,T] bool: the `count` candidates (or all, if fewer) with the smallest score."""
    score_n = torch.where(candidate_bt, score_bt.to(torch.float64), torch.inf).reshape(-1)
    chosen_n = torch.zeros_like(score_n, dtype=torch.bool)
    chosen_n[score_n.argsort()[: min(count, int(candidate_bt.sum()))]] = True
    return chosen_n.reshape(score_bt.shape)


@part("objective")
class ClipCov(Objective):
    """PPO's clip, and no loss for a few random tokens whose covariance lies in (lower, upper) (Clip-Cov).

    max(1, int(share · tokens)) of them are sampled among tokens that the clip leaves alone; chance is a hash of the
    current log-probs.
    """

    clip_low: LowBound = 1.0
    clip_high: Bound = 1.0
    share: PositiveShare = 2e-4
    lower: float = 1.0
    upper: float = 5.0
    renamed: ClassVar[Mapping[str, str]] = OLD_BOUNDS
    couples: ClassVar[str] = "batch"
    reads = ("old_bt",)

    def __post_init__(self) -> None:
        """Refuse an empty interval."""
        if self.lower >= self.upper:
            raise InputError(f"clip_cov: lower {self.lower:g} ≥ upper {self.upper:g}", "the interval must not be empty")

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """-min(ρA, clip(ρ)A), zero for the sampled tokens."""
        adv_bt = batch.need("advantage_bt", self.name)
        ratio_bt = log_ratio(logp_bt, batch).exp()
        loss_bt = torch.maximum(-adv_bt * ratio_bt, -adv_bt * ratio_bt.clamp(1 - self.clip_low, 1 + self.clip_high))
        metrics = clip_metrics(ratio_bt, adv_bt, 1 - self.clip_low, 1 + self.clip_high)
        cov_bt = covariance(logp_bt, batch)
        free_bt = batch.active_bt & (metrics["clip_fraction"] == 0)
        candidate_bt = free_bt & (cov_bt > self.lower) & (cov_bt < self.upper)
        sampled_bt = first(hashed(logp_bt, batch.mask_bt), candidate_bt, _count(self.share, batch))
        metrics["covariance_fraction"] = sampled_bt.to(adv_bt.dtype)
        return TokenLoss(torch.where(sampled_bt, 0, loss_bt), metrics)

    @override
    def words(self) -> str:
        return (
            f"PPO clip with [{1 - self.clip_low:g}, {1 + self.clip_high:g}], and no gradient for a "
            f"random {self.share:g} of the "
            f"tokens, sampled where log-prob and advantage vary together (covariance {self.lower:g} to {self.upper:g})"
        )

    @override
    def formula(self) -> str:
        return (
            f"-[t not sampled]·min(ρ·A, clip(ρ, {1 - self.clip_low:g}, {1 + self.clip_high:g})·A),  "
            f"sampled where {self.lower:g} < (A - mean A)(log π - mean log π) < {self.upper:g}"
        )


@part("objective", name="kl_cov")
class KLCov(Objective):
    """Importance-weighted policy gradient without clip; the tokens of largest covariance pay |log ρ| (KL-Cov).

    max(1, int(share · tokens)) tokens pay coef·|log π - log π_old|, whose slope is zero at the first update.
    """

    share: PositiveShare = 2e-3
    coef: Annotated[float, Field(ge=0)] = 1.0
    couples: ClassVar[str] = "batch"
    says = (
        "importance-weighted policy gradient without clip; the {share:g} of the tokens whose log-prob and "
        "advantage vary together most pay {coef:g} times their distance from the old policy"
    )
    equation = "-ρ_t·A_t + {coef:g}·[t among the top {share:g} of (A - mean A)(log π - mean log π)]·|log ρ_t|"
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """-ρ_t·A_t, plus coef·|log ρ_t| for the chosen tokens."""
        adv_bt = batch.need("advantage_bt", self.name)
        log_bt = log_ratio(logp_bt, batch)
        tie_bt = 1e-12 * hashed(logp_bt, batch.mask_bt)  # among equals chance decides, not place
        score_bt = tie_bt - covariance(logp_bt, batch).to(torch.float64)
        chosen_bt = first(score_bt, batch.active_bt, _count(self.share, batch))
        drift_bt = log_distance(logp_bt, batch, "old").abs()  # not held within ±20: the way back must stay open
        loss_bt = -adv_bt * log_bt.exp() + torch.where(chosen_bt, self.coef * drift_bt, 0)
        return TokenLoss(loss_bt, {"covariance_fraction": chosen_bt.to(adv_bt.dtype)})

    def zero_rows(self, batch: Batch) -> Tensor:
        """[B] bool: no row for sure, because a token without advantage may be chosen to pay."""
        return torch.zeros_like(batch.group_b, dtype=torch.bool) if self.coef else super().zero_rows(batch)

    def idle(self, run: RunFacts) -> list[str]:
        """The distance has no slope at zero."""
        if run.updates_per_rollout == 1 or self.coef == 0:
            return ["the penalty of kl_cov has no effect: at the first update of a rollout the distance is 0 and flat"]
        return []


def _count(share: float, batch: Batch) -> int:
    return max(1, int(share * int(batch.active_bt.sum())))
