"""Entropy control by covariance: tokens that are likely *and* good collapse the entropy, so they are restrained.

c_t = (A_t - mean A)(log π_t - mean log π), means over the tokens of the optimiser step, detached (arXiv:2505.22617).
The loss must see the whole step at once.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.lines import clip_lines
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Bound, LowBound, Surrogate, clipped
from grouprl.algorithms.objective.ratio import log_ratio, ratio_code
from grouprl.algorithms.part import part
from grouprl.algorithms.token_weight.token_selection import hashed
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import PositiveShare

COVARIANCE = (
    "adv_n, logp_n = adv_bt[active_bt], logp_bt.detach()[active_bt]",
    "cov_bt = torch.where(active_bt, (adv_bt - adv_n.mean()) * (logp_bt.detach() - logp_n.mean()), 0)",
)
"""Lines that assign `cov_bt`, the `covariance` of each token."""


def covariance(logp_bt: Tensor, batch: Batch) -> Tensor:
    """Return [B,T] (A_t - mean A)(log π_t - mean log π) over active tokens, zero elsewhere."""
    active_bt = batch.active_bt
    adv_bt, logp_bt = batch.need("advantage_bt", "covariance"), logp_bt.detach()
    around_bt = [x - x[active_bt].mean() for x in (adv_bt, logp_bt)]
    return torch.where(active_bt, around_bt[0] * around_bt[1], 0)


def first(score_bt: Tensor, candidate_bt: Tensor, count: int) -> Tensor:
    """Return [B,T] bool: the `count` candidates (or all, if fewer) with the smallest score."""
    score_n = torch.where(candidate_bt, score_bt.to(torch.float64), torch.inf).reshape(-1)
    chosen_n = torch.zeros_like(score_n, dtype=torch.bool)
    chosen_n[score_n.argsort()[: min(count, int(candidate_bt.sum()))]] = True
    return chosen_n.reshape(score_bt.shape)


@part("objective")
class ClipCov(Surrogate):
    """PPO's clip, and no loss for a few random tokens whose covariance lies in (lower, upper) (Clip-Cov).

    max(1, int(share · tokens)) of them are sampled among tokens that the clip leaves alone; chance is a hash of the
    current log-probs.
    """

    clip_low: LowBound = 1.0
    clip_high: Bound = 1.0
    share: PositiveShare = 2e-4
    lower: float = 1.0
    upper: float = 5.0
    couples: ClassVar[str] = "batch"
    reads = ("old_bt",)

    def __post_init__(self) -> None:
        """Raise InputError if the interval of covariances is empty."""
        if self.lower >= self.upper:
            raise InputError(f"clip_cov: lower {self.lower:g} ≥ upper {self.upper:g}", "the interval must not be empty")

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -min(ρA, clip(ρ)A), zero for the sampled tokens."""
        adv_bt = batch.need("advantage_bt", self.name)
        ratio_bt = log_ratio(logp_bt, batch).exp()
        found = clipped(ratio_bt, adv_bt, 1 - self.clip_low, 1 + self.clip_high)
        metrics = dict(found.metrics)
        cov_bt = covariance(logp_bt, batch)
        free_bt = batch.active_bt & (metrics["clip_fraction"] == 0)
        candidate_bt = free_bt & (cov_bt > self.lower) & (cov_bt < self.upper)
        sampled_bt = first(hashed(logp_bt, batch.mask_bt), candidate_bt, tokens_in(self.share, batch))
        metrics["covariance_fraction"] = sampled_bt.to(adv_bt.dtype)
        return TokenLoss(torch.where(sampled_bt, 0, found.loss_bt), metrics)

    @override
    def code(self) -> str:
        low, high = repr(1 - self.clip_low), repr(1 + self.clip_high)
        return "\n".join(
            [
                *ratio_code("token", "old"),
                *clip_lines(low, high, None),
                f"out_bt = ((ratio_bt > {high}) & (adv_bt > 0)) | ((ratio_bt < {low}) & (adv_bt < 0))",
                *COVARIANCE,
                f"free_bt = active_bt & ~out_bt & (cov_bt > {self.lower!r}) & (cov_bt < {self.upper!r})",
                f"count = max(1, int({self.share!r} * int(active_bt.sum())))",
                "spared_bt = first(hashed(logp_bt, mask_bt), free_bt, count)  # by chance: a hash",
                "loss_bt = torch.where(spared_bt, 0, loss_bt)",
            ]
        )

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


def tokens_in(share: float, batch: Batch) -> int:
    """Return how many tokens a share of the active tokens is, at least one."""
    return max(1, int(share * int(batch.active_bt.sum())))
