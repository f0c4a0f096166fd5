"""Surrogate losses: the contribution of one token, given its log-prob and its advantage.

All are minimised. Each returns token losses [B,T]; the aggregation decides how they are summed.
Where a ratio is capped or clipped, metrics say how often, so that a clip that never acts can be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.lines import clip_lines
from grouprl.algorithms.losses import Losses, TokenLoss
from grouprl.algorithms.objective.ratio import Against, RatioLevel, log_ratio, ratio_code, symbol, within
from grouprl.algorithms.part import Part, RunFacts, part
from grouprl.core.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor

Bound = Annotated[float, Field(gt=0)]
LowBound = Annotated[float, Field(ge=0, le=1)]


class Objective(Part):
    """Base: losses of tokens, rows, pairs or groups from log-probs and the prepared batch."""

    proportional: ClassVar[bool] = False
    """Whether the optimum samples in proportion to exp(reward): the mean reward then does not say what is learned."""

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Losses:
        """Return losses, differentiable in `logp_bt` ([B,T])."""
        raise NotImplementedError

    def pairs(self, batch: Batch) -> Tensor | None:
        """Return [E,2] int64: the pairs of rows of an optimiser step that the objective compares; None: it compares
        none.
        """
        return None

    def compute_loss_weights(self, batch: Batch) -> Batch:
        """Return an optimiser step, whose shares of metrics are known, with what the loss needs of all its rows."""
        return batch

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows whose gradient is exactly zero whatever the log-probs are (here: no advantage
        anywhere).
        """
        return ~(batch.need("advantage_bt", self.name) != 0).any(1)


class Surrogate(Objective):
    """Base of what stands for the expected reward: an expectation over completions that the policy samples."""

    own_samples = "its gradient is that of the expected reward"


@part("objective")
class PolicyGradient(Surrogate):
    """REINFORCE: every token's log-prob times its advantage, no ratio (Williams 1992)."""

    says = "push each token's log-prob by its advantage, without ratio or clip"
    equation = "-A_t · log π(y_t)"
    plain = "loss_bt = -adv_bt * logp_bt"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return loss_t = -A_t log π(y_t)."""
        return TokenLoss(-batch.need("advantage_bt", self.name) * logp_bt, {})


@part("objective")
class Clipped(Surrogate):
    """PPO's pessimistic clipped surrogate (Schulman et al. 2017, eq. 7), at any ratio level.

    `dual_clip` bounds the loss of a negative token at -A·dual_clip (Ye et al. 2020, arXiv:1912.09729); None turns it
    off. Above 1+clip_high it is also INTELLECT-2's two-sided clip: min(ρ, δ) in the free branch with δ = dual_clip.
    """

    clip_low: LowBound = 0.2
    clip_high: Bound = 0.2
    ratio: RatioLevel = "token"
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    against: Against = "old"
    reads = ("{against}_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return loss_t = max(-A ρ, -A clip(ρ, 1-clip_low, 1+clip_high)), for A<0 at most -A·dual_clip."""
        return self.surrogate(log_ratio(logp_bt, batch, self.ratio, self.against).exp(), batch)

    def surrogate(self, ratio_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return the pessimistic loss of ratios [B,T]."""
        adv_bt = batch.need("advantage_bt", self.name)
        return clipped(ratio_bt, adv_bt, 1 - self.clip_low, 1 + self.clip_high, self.dual_clip)

    @override
    def code(self) -> str:
        bounds = repr(1 - self.clip_low), repr(1 + self.clip_high)
        return "\n".join([*ratio_code(self.ratio, self.against), *clip_lines(*bounds, self.dual_clip)])

    @override
    def words(self) -> str:
        dual = f", a negative token's loss at most {self.dual_clip:g}·|A|" if self.dual_clip else ""
        return (
            f"PPO clip at {self.ratio} level: no gain from moving the ratio beyond "
            f"[{1 - self.clip_low:g}, {1 + self.clip_high:g}]{dual}"
        )

    @override
    def formula(self) -> str:
        dual = "" if self.dual_clip is None else f" (at most {self.dual_clip:g}·|A| where A < 0)"
        clip = f"-min(ρ·A, clip(ρ, {1 - self.clip_low:g}, {1 + self.clip_high:g})·A)"
        return f"{clip}{dual},  {symbol(self.ratio, self.against)}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the clip has no effect if the ratio is always 1."""
        return idle_ratio(run, self.against, f"the clip [{1 - self.clip_low:g}, {1 + self.clip_high:g}]")


def idle_ratio(run: RunFacts, against: str, what: str) -> list[str]:
    """Say that `what` has no effect if the ratio is always 1."""
    if run.updates_per_rollout > 1 or not run.fresh_old or (against == "behavior" and not run.exact_sampler):
        return []
    sampler = " and an exact sampler" if against == "behavior" else ""
    return [
        f"{what} cannot act: with one update per rollout{sampler} the ratio is always 1. "
        "Use batch.minibatches or batch.epochs of 2 or more"
    ]


def clipped(
    ratio_bt: Tensor, adv_bt: Tensor, low: float | Tensor, high: float | Tensor, dual: float | None = None
) -> TokenLoss:
    """Return PPO's pessimistic loss of ratios with their bounds (numbers, or [B,T]), and how often they act; a negative
    token's loss is at most dual·|A|.
    """
    loss_bt = torch.maximum(-adv_bt * ratio_bt, -adv_bt * within(ratio_bt, low, high))
    if dual is not None:
        loss_bt = torch.where(adv_bt < 0, torch.minimum(loss_bt, -adv_bt * dual), loss_bt)
    return TokenLoss(loss_bt, clip_metrics(ratio_bt, adv_bt, low, high, dual))


def clip_metrics(
    ratio_bt: Tensor, adv_bt: Tensor, low: float | Tensor, high: float | Tensor, dual: float | None = None
) -> dict[str, Tensor]:
    """Return the shares of tokens whose gradient the pessimistic clip removes: above, below, and by the dual clip."""
    ratio_bt = ratio_bt.detach()
    above_bt = ((ratio_bt > high) & (adv_bt > 0)).to(adv_bt.dtype)
    below_bt = ((ratio_bt < low) & (adv_bt < 0)).to(adv_bt.dtype)
    metrics = {
        "clip_fraction": above_bt + below_bt,
        "clip_fraction_high": above_bt,
        "clip_fraction_low": below_bt,
    }
    if dual is not None:
        metrics["clip_fraction_dual"] = ((ratio_bt > dual) & (adv_bt < 0)).to(adv_bt.dtype)
    return metrics
