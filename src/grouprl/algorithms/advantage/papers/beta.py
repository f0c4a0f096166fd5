"""Advantages divided by a Beta density that is fitted to the pass rates of the batch (BNPO, arXiv:2506.02864)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage, Relative
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.levels import Alone

Shape = Annotated[float, Field(ge=1)]


def moments(p_b: Tensor, id_b: Tensor, counted_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance (n-1) of `p_b`, each segment counting once, as scalars; one segment has variance 0."""
    once_b = counted_b / levels.count(id_b, counted_b, p_b.dtype).clamp(min=1)
    k = once_b.sum()
    mean = (once_b * p_b).sum() / k.clamp(min=1)
    variance = (once_b * (p_b - mean).square()).sum() / (k - 1).clamp(min=1)
    return mean, variance


def beta_shape(p_b: Tensor, id_b: Tensor, counted_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return (α, β) = max(1 + a/3, 1), max(1 + b/3, 1), Beta(a, b) having the mean and variance of the pass rates.

    Without spread of the pass rates there is nothing to fit, and both are 1.
    """
    mean, variance = moments(p_b, id_b, counted_b)
    size = torch.where(variance > 1e-12, mean * (1 - mean) / variance.clamp(min=1e-12) - 1, 0)
    return (1 + size * mean / 3).clamp(min=1), (1 + size * (1 - mean) / 3).clamp(min=1)


def inverse_density(p_b: Tensor, alpha: Tensor, beta: Tensor, limit: float) -> Tensor:
    """Return [B] 1 / Beta(p; α, β), at most `limit`; 1 where p is not inside (0, 1)."""
    inside_b = (p_b > 0) & (p_b < 1)
    safe_b = torch.where(inside_b, p_b, 0.5)
    log_norm = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
    log_b = (alpha - 1) * safe_b.log() + (beta - 1) * torch.log1p(-safe_b) - log_norm
    return torch.where(inside_b, (-log_b).exp().clamp(max=limit), 1)


@part("advantage")
class BetaNormalized(Advantage):
    """(R - p) / f(p): p the group's mean reward, f the Beta density fitted to the p of all groups of the batch (BNPO).

    Rewards lie in [low, high] and are mapped to [0, 1]. `alpha` and `beta` fix the density instead of fitting it: with
    both 1 nothing is scaled, with both 1.5 the scale is the standard deviation times 8/π. `components` names parts of
    the reward that are judged one by one, each with its own density, and averaged. A group whose mean is 0, 1 or
    outside stays unscaled.
    """

    low: float = 0.0
    high: float = 1.0
    alpha: Shape | None = None
    beta: Shape | None = None
    limit: Annotated[float, Field(gt=0)] = 1e6
    components: tuple[str, ...] = ()
    alone: Alone = "zero"
    equation = "A = (R - p_g) / Beta(p_g; α, β),  p_g = mean_g R,  (α, β) from mean and variance of p over groups"

    def __post_init__(self) -> None:
        """Refuse an empty range, and a density of which only one shape is given."""
        if self.low >= self.high:
            raise InputError(
                f"beta_normalized: low {self.low:g}, high {self.high:g}",
                "rewards are in [low, high]",
                "Set low below high",
            )
        if (self.alpha is None) != (self.beta is None):
            raise InputError(
                f"beta_normalized: alpha {self.alpha}, beta {self.beta}", "a density needs both", "Set both or neither"
            )

    def __call__(self, batch: Batch) -> Tensor:
        """Return the advantages A_b, the same for all tokens of a row, [B,T]."""
        if not self.components:
            return batch.broadcast(self._normalised(batch.total_reward_b, batch))
        each = [self._normalised(self._component(name, batch), batch) for name in self.components]
        return batch.broadcast(torch.stack(each).mean(0))

    @override
    def code(self) -> str:
        if self.components or self.alone != "zero":
            return ""
        fitted = (
            "once_b = counts_b.to(reward_b.dtype) / same_bb.sum(1).clamp(min=1)  # each group counts once\n"
            "p, k = (once_b * p_b).sum() / once_b.sum().clamp(min=1), once_b.sum()\n"
            "var = (once_b * (p_b - p).square()).sum() / (k - 1).clamp(min=1)\n"
            "size = torch.where(var > 1e-12, p * (1 - p) / var.clamp(min=1e-12) - 1, 0)\n"
            "alpha, beta = (1 + size * p / 3).clamp(min=1), (1 + size * (1 - p) / 3).clamp(min=1)\n"
        )
        if self.alpha is not None and self.beta is not None:
            fitted = f"alpha, beta = reward_b.new_tensor({self.alpha!r}), reward_b.new_tensor({self.beta!r})\n"
        return (
            f"unit_b = (reward_b - {self.low!r}) / {self.high - self.low!r}\n"
            "p_b = mean(unit_b, same_bb).clamp(0, 1)\n"
            f"{fitted}"
            f"adv_b = centered(unit_b, same_bb) * inverse_density(p_b, alpha, beta, {self.limit!r}) * counts_b\n"
            "adv_bt = adv_b[:, None] * mask_bt"
        )

    def _normalised(self, reward_b: Tensor, batch: Batch) -> Tensor:
        unit_b = (reward_b - self.low) / (self.high - self.low)
        counted_b, id_b = batch.stats_b.double(), batch.group_b
        centered_b = levels.relative(
            unit_b, id_b, scale="none", alone=self.alone, weight_n=batch.stats_b.to(unit_b.dtype)
        )
        p_b = levels.mean(unit_b.double(), id_b, counted_b).clamp(0, 1)
        if self.alpha is None or self.beta is None:
            alpha, beta = beta_shape(p_b, id_b, counted_b)
        else:
            alpha, beta = (torch.tensor(x, dtype=p_b.dtype, device=p_b.device) for x in (self.alpha, self.beta))
        return centered_b * inverse_density(p_b, alpha, beta, self.limit).to(centered_b.dtype)

    def _component(self, name: str, batch: Batch) -> Tensor:
        if name not in batch.rewards:
            known = ", ".join(batch.rewards) or "none"
            raise InputError(f"beta_normalized: there is no reward component '{name}'", f"this batch has: {known}")
        return batch.rewards[name].to(batch.dtype)

    @override
    def words(self) -> str:
        density = "fitted to the batch" if self.alpha is None else f"Beta({self.alpha:g}, {self.beta:g})"
        parts = f", for each of {', '.join(self.components)}, averaged" if self.components else ""
        return f"reward minus the mean of its group, divided by a Beta density of that mean, {density}{parts}"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which have nothing to be compared with."""
        return Relative(alone=self.alone).refuse(run)
