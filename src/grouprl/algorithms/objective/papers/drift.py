"""Drift penalties in place of a clip, as found by meta-learning: Discovered Policy Optimisation, and aware of time."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Surrogate, idle_ratio
from grouprl.algorithms.objective.ratio import held, log_ratio
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive

Weights = Annotated[tuple[float, ...], Field(min_length=8, max_length=8)]
SLACK = 1e-6
"""What the sum of the features must exceed, so that rounding at a ratio of 1 is not drift."""
ELAPSED = "u = min(step / max(steps - 1, 1), 1.0)"
FEATURES = (
    *("off_bt", "off_bt.square()", "off_bt * adv_bt", "off_bt.square() * adv_bt"),
    *("log_bt", "log_bt.square()", "log_bt * adv_bt", "log_bt.square() * adv_bt"),
)
"""The features in plain torch, `off_bt` being 1 - ρ."""


@part("objective")
class DiscoveredDrift(Surrogate):
    """-(ρ·A - f(ρ, A)): f holds the ratio where the objective gains by moving it (DPO, arXiv:2210.05639, section 5).

    f = max(0, (ρ-1)A - α·tanh((ρ-1)A/α)) for A ≥ 0, and max(0, log(ρ)A - β·tanh(log(ρ)A/β)) for A < 0. f and its slope
    are 0 at ρ = 1; the gradient passes through both terms.
    """

    alpha: Positive = 2.0
    beta: Positive = 0.6
    reads: ClassVar[tuple[str, ...]] = ("old_bt",)
    says = "push each token's ratio by its advantage, less a drift that grows once it has moved that way"
    equation = (
        "-(ρ·A - f),  f = max(0, x - c·tanh(x/c)),  x = (ρ-1)A, c = {alpha:g} if A ≥ 0, x = log(ρ)A, c = {beta:g}"
    )

    def scales(self, batch: Batch) -> tuple[float, float]:
        """Return the scale of f where the advantage is 0 or above, and where it is below."""
        return self.alpha, self.beta

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return f(ρ, A) - ρ·A."""
        adv_bt = batch.need("advantage_bt", self.name)
        log_bt = held(log_ratio(logp_bt, batch, "token"))
        above, below = self.scales(batch)
        gain_bt = torch.where(adv_bt >= 0, torch.expm1(log_bt) * adv_bt, log_bt * adv_bt)
        scale_bt = torch.where(adv_bt >= 0, torch.full_like(adv_bt, above), torch.full_like(adv_bt, below))
        drift_bt = (gain_bt - scale_bt * torch.tanh(gain_bt / scale_bt)).clamp(min=0)
        return TokenLoss(drift_bt - log_bt.exp() * adv_bt, {"drift": drift_bt.detach()})

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return drift_lines(repr(self.alpha), repr(self.beta))

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the drift has no effect if the ratio is always 1."""
        return idle_ratio(run, "old", "the drift")


@part("objective")
class HorizonDrift(DiscoveredDrift):
    """The drift of `discovered_drift` with scales that move over the run, from `alpha` and `beta` to those of its end.

    With u = step/(steps - 1) they are α + (α_end - α)·u and β + (β_end - β)·u: a smaller scale holds the ratio earlier.
    As in TA-LPO (arXiv:2402.05828) the rule sees the share of the run that is over, and f stays 0 at ρ = 1. *Differs
    from the paper*: there a network has the features of the ratio and their products with n/N, and a search by
    evolution finds its weights; here the closed form is that of Discovered Policy Optimisation, and how it moves is
    ours.
    """

    alpha_end: Positive = 0.5
    beta_end: Positive = 0.15
    reads = ("old_bt", "step", "steps")
    says = (
        "push each token's ratio by its advantage, less a drift that grows once it has moved that way, earlier or "
        "later by the share of the run that is over"
    )
    equation = (
        "-(ρ·A - f),  f = max(0, x - c·tanh(x/c)),  x = (ρ-1)A, c = {alpha:g} to {alpha_end:g} if A ≥ 0, "
        "x = log(ρ)A, c = {beta:g} to {beta_end:g},  both by step/(steps-1)"
    )

    @override
    def scales(self, batch: Batch) -> tuple[float, float]:
        u = elapsed(batch, self.name)
        return self.alpha + (self.alpha_end - self.alpha) * u, self.beta + (self.beta_end - self.beta) * u

    @override
    def idle(self, run: RunFacts) -> list[str]:
        still = (
            f"{self.name} changes its scales from step to step, and the run has one step: they stay at alpha and beta"
        )
        return [*super().idle(run), *[still] * (run.steps == 1)]

    @override
    def code(self) -> str:
        above = f"{self.alpha!r} + {self.alpha_end - self.alpha!r} * u"
        below = f"{self.beta!r} + {self.beta_end - self.beta!r} * u"
        return f"{ELAPSED}\n{drift_lines(above, below)}"


@part("objective")
class FeatureDrift(Surrogate):
    """-(ρ·A - f), f = max(0, Σ_k (w_k + u·v_k)·x_k - 10⁻⁶): the form that LPO and TA-LPO learn, with weights by hand.

    x are the eight features 1-ρ, (1-ρ)², (1-ρ)A, (1-ρ)²A, log ρ, log²ρ, A·log ρ and A·log²ρ, u = step/(steps - 1). All
    are 0 at ρ = 1, so that f and its slope are. Weights `late` are v, those of TA-LPO's second half of features; with
    zeros the rule does not depend on time. By default f is a quarter of the squared distance of the ratio from 1 at
    first and all of it at the end. Source: Lu et al. 2022 (arXiv:2210.05639), Jackson et al. 2024 (arXiv:2402.05828).
    *Differs from the papers*: f is linear, where they have a small network, and the weights are ours.
    """

    weights: Weights = (0.0, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    late: Weights = (0.0, 0.75, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    says = "push each token's ratio by its advantage, less a drift: a weighted sum of eight features of ratio and time"
    equation = (
        "-(ρ·A - f),  f = max(0, Σ_k (w_k + u·v_k)·x_k - 1e-6),  x = (1-ρ, (1-ρ)², (1-ρ)A, (1-ρ)²A, log ρ, log²ρ, "
        "A·log ρ, A·log²ρ),  u = step/(steps-1)"
    )

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return f - ρ·A."""
        adv_bt = batch.need("advantage_bt", self.name)
        log_bt = held(log_ratio(logp_bt, batch, "token"))
        u = elapsed(batch, self.name) if any(self.late) else 0.0
        weights = [now + u * later for now, later in zip(self.weights, self.late, strict=True)]
        sum_bt = features(log_bt, adv_bt) @ adv_bt.new_tensor(weights)
        drift_bt = (sum_bt - SLACK).clamp(min=0)
        return TokenLoss(drift_bt - log_bt.exp() * adv_bt, {"drift": drift_bt.detach()})

    @override
    def needs(self) -> tuple[str, ...]:
        return ("old_bt", "step", "steps") if any(self.late) else ("old_bt",)

    @override
    def code(self) -> str:
        pairs = zip(self.weights, self.late, FEATURES, strict=True)
        terms = [(f"({now!r} + {later!r} * u)" if later else repr(now), x) for now, later, x in pairs if now or later]
        summed = " + ".join(f"{weight} * {x}" for weight, x in terms) or "torch.zeros_like(log_bt)"
        lines = [ELAPSED] if any(self.late) else []
        lines += ["log_bt = held(torch.where(active_bt, logp_bt - old_bt, 0))", "off_bt = -torch.expm1(log_bt)"]
        lines += [f"drift_bt = ({summed} - {SLACK!r}).clamp(min=0)", "loss_bt = drift_bt - log_bt.exp() * adv_bt"]
        return "\n".join(lines)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the drift has no effect if the ratio is always 1, or all weights are 0."""
        none = not any((*self.weights, *self.late))
        return ["feature_drift has no effect: all its weights are 0"] if none else idle_ratio(run, "old", "the drift")


def features(log_bt: Tensor, adv_bt: Tensor) -> Tensor:
    """Return the eight features of LPO, [B,T,8]."""
    off_bt = -torch.expm1(log_bt)
    plain = [off_bt, off_bt.square(), log_bt, log_bt.square()]
    first, second = plain[:2], plain[2:]
    return torch.stack([*first, *(x * adv_bt for x in first), *second, *(x * adv_bt for x in second)], -1)


def elapsed(batch: Batch, reader: str) -> float:
    """Return the share of the run that is over, u = step/(steps - 1); 0 in a run of one step."""
    return float(min(batch.need("step", reader) / max(batch.need("steps", reader) - 1, 1), 1.0))


def drift_lines(above: str, below: str) -> str:
    """Return the drift in lines of plain torch, with the scales for advantages of 0 and above, and for those below."""
    return f"""log_bt = held(torch.where(active_bt, logp_bt - old_bt, 0))
gain_bt = torch.where(adv_bt >= 0, torch.expm1(log_bt), log_bt) * adv_bt
scale_bt = torch.where(adv_bt >= 0, torch.full_like(adv_bt, {above}), {below})
drift_bt = (gain_bt - scale_bt * torch.tanh(gain_bt / scale_bt)).clamp(min=0)
loss_bt = drift_bt - log_bt.exp() * adv_bt"""
