"""Regression: fit scaled log-ratios to an anchor policy to advantages, instead of pushing log-probs by them.

The minimiser over all policies is the anchor tilted by the advantage, π ∝ π_anchor·exp(A/β), whatever distribution the
completions were sampled from: no importance ratio, no clip. At π = π_anchor the gradient is a policy gradient.

Where a whole completion is fitted, it has one loss, and `sequence_mean` averages completions.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import RowLoss, TokenLoss, counted
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive

Anchor = Literal["old", "ref"]


def log_distance(logp_bt: Tensor, batch: Batch, anchor: Anchor) -> Tensor:
    """Return [B,T] log π - log π_anchor, zero outside the loss mask."""
    return torch.where(batch.active_bt, logp_bt - batch.need(f"{anchor}_bt", "the regression"), 0)


def completion_value(value_bt: Tensor, active_bt: Tensor) -> Tensor:
    """Return [B] mean over each row's active tokens; exactly their value if they agree, 0 for a row without any."""
    mean_b = torch.where(active_bt, value_bt, 0).sum(1) / active_bt.sum(1).clamp(min=1)
    high_b = torch.where(active_bt, value_bt, -torch.inf).amax(1)
    low_b = torch.where(active_bt, value_bt, torch.inf).amin(1)
    return torch.where(high_b == low_b, high_b, mean_b)


def same_group(batch: Batch) -> Tensor:
    """Return [B,B] bool: whether two rows complete the same prompt."""
    return batch.group_b[:, None] == batch.group_b[None]


def anchor_words(anchor: Anchor) -> str:
    """Name the anchor policy."""
    return "the policy at the start of the update" if anchor == "old" else "the reference model"


def anchored(run: RunFacts, anchor: Anchor, name: str) -> list[str]:
    """Say why a regression anchored at the reference cannot work without one."""
    if anchor == "ref" and not run.has_reference:
        return [f"{name} regresses on the distance to a reference model. Set model.reference: initial"]
    return []


def beside_anchor(run: RunFacts, anchor: Anchor, name: str) -> list[str]:
    """Say that with one update per rollout the regression is a plain policy gradient."""
    if anchor == "old" and run.updates_per_rollout == 1:
        return [
            f"{name} is a plain policy gradient here: with one update per rollout the anchor is the policy itself. "
            "Use batch.minibatches or batch.epochs of 2 or more"
        ]
    return []


@part("objective")
class Regression(Objective):
    """c·(β·log(π/π_anchor) - A)², for every token or for every completion (APA arXiv:2306.02231, A*-PO
    arXiv:2505.20686).

    `level="sequence"` takes the sum of a completion's log-ratios. Without centring the advantage must hold the baseline
    that the optimum needs, E_anchor[exp(A/β)] = 1. Rows of advantage 0 are pulled to the anchor, too.
    """

    beta: Positive = 1.0
    coef: Positive = 1.0
    anchor: Anchor = "ref"
    level: Literal["token", "sequence"] = "sequence"
    reads = ("{anchor}_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss | RowLoss:
        """Return c·(β d - A)², d = log π - log π_anchor of the token or the completion."""
        adv_bt, active_bt = batch.need("advantage_bt", self.name), batch.active_bt
        log_bt = log_distance(logp_bt, batch, self.anchor)
        if self.level == "token":
            return TokenLoss(self.coef * (self.beta * log_bt - adv_bt).square() * active_bt, {})
        error_b = self.beta * log_bt.sum(1) - completion_value(adv_bt, active_bt)
        return RowLoss(self.coef * error_b.square())

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        log = f"d_bt = torch.where(active_bt, logp_bt - {self.anchor}_bt, 0)"
        if self.level == "token":
            return f"{log}\nloss_bt = {self.coef!r} * ({self.beta!r} * d_bt - adv_bt).square() * active_bt"
        return f"""{log}
target_b = adv_bt.sum(1) / active_bt.sum(1).clamp(min=1)
loss_bt = {self.coef!r} * ({self.beta!r} * d_bt.sum(1) - target_b).square()[:, None] * active_bt"""

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: only rows without tokens, because an advantage of 0 is a target too."""
        return ~batch.active_bt.any(1)

    @override
    def words(self) -> str:
        what = "token's log-ratio" if self.level == "token" else "completion's log-ratio (sum over its tokens)"
        return f"fit {self.beta:g} times each {what} to {anchor_words(self.anchor)} to its advantage, by least squares"

    @override
    def formula(self) -> str:
        of = "(y_t)" if self.level == "token" else "(y)"
        return f"{self.coef:g}·({self.beta:g}·log(π/π_{self.anchor}){of} - A)²"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that with one update per rollout the regression is a plain policy gradient."""
        return beside_anchor(run, self.anchor, self.name)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse the anchor `ref` without a reference model."""
        return anchored(run, self.anchor, self.name)


@part("objective")
class GroupRegression(Objective):
    """c times the variance, over a group, of β·log(π/π_anchor)(y_i) - A_i (GVPO arXiv:2504.19599, REBEL, CoPG).

    Centring within the group cancels the partition function, so no baseline has to be known. The sample variance is
    also ½ the mean over all pairs of (β(d_i - d_j) - (A_i - A_j))², d the log-ratio summed over a completion. `average`
    "population" divides the squares by G instead of G-1. With `standardize_eps` the log-ratios are divided by
    sqrt(var_g d + eps²) in place of β (Reg-GRPO, arXiv:2506.07464): differentiated too, and smooth at d = 0.
    """

    beta: Positive = 1.0
    coef: Positive = 0.5
    anchor: Anchor = "old"
    average: Literal["sample", "population"] = "sample"
    standardize_eps: Positive | None = None
    couples: ClassVar[str] = "group"
    reads = ("{anchor}_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return c·G/(G-1)·(β(d_i - mean_g d) - A_i)² of completion i."""
        adv_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        n_b, weight_b = self._counts(batch)
        log_b = log_distance(logp_bt, batch, self.anchor).sum(1)
        predicted_b = self.beta * (log_b - levels.mean(log_b, batch.group_b, weight_b))
        if self.standardize_eps is not None:
            centered_b = log_b - levels.mean(log_b, batch.group_b, weight_b)
            square_b = levels.total(centered_b.square(), batch.group_b, weight_b) / (n_b - 1).clamp(min=1)
            predicted_b = centered_b / (square_b + self.standardize_eps**2).sqrt()
        factor_b = n_b / (n_b - 1).clamp(min=1) if self.average == "sample" else torch.ones_like(n_b)
        loss_b = self.coef * factor_b * (predicted_b - adv_b).square() * weight_b * (n_b > 1)
        return RowLoss(loss_b)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        predicted = f"{self.beta!r} * centred_b"
        if self.standardize_eps is not None:
            square = "(peer_bb * centred_b.square()).sum(1) / (n_b - 1).clamp(min=1)"
            predicted = f"centred_b / ({square} + {self.standardize_eps**2!r}).sqrt()"
        factor = " * n_b / (n_b - 1).clamp(min=1)" if self.average == "sample" else ""
        return f"""peer_bb = same_bb & counts_b & active_bt.any(1)  # rows that are compared
n_b = peer_bb.sum(1).to(logp_bt.dtype)
d_b = torch.where(active_bt, logp_bt - {self.anchor}_bt, 0).sum(1)
centred_b = d_b - (peer_bb * d_b).sum(1) / n_b.clamp(min=1)
predicted_b = {predicted}
target_b = adv_bt.sum(1) / active_bt.sum(1).clamp(min=1)
loss_b = {self.coef!r}{factor} * (predicted_b - target_b).square() * peer_bb.diagonal() * (n_b > 1)
loss_bt = loss_b[:, None] * active_bt"""

    def _counts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        weight_b = counted(batch)
        return levels.count(batch.group_b, weight_b, batch.dtype), weight_b

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that are alone in their group, or do not count in it."""
        n_b, weight_b = self._counts(batch)
        return (n_b <= 1) | (weight_b == 0)

    @override
    def words(self) -> str:
        scale = f"{self.beta:g} times their" if self.standardize_eps is None else "their standardised"
        return (
            f"fit differences between completions of one prompt: {scale} log-ratios (sum over tokens) to "
            f"{anchor_words(self.anchor)}, centred within the group, to their advantages, by least squares"
        )

    @override
    def formula(self) -> str:
        ratio, factor = f"log(π/π_{self.anchor})(y_i)", "·G/(G-1)" if self.average == "sample" else ""
        scaled = f"{self.beta:g}·(d_i - mean_g d)"
        if self.standardize_eps is not None:
            scaled = f"(d_i - mean_g d)/sqrt(var_g d + {self.standardize_eps:g}²)"
        return f"{self.coef:g}{factor}·({scaled} - A_i)²,  d_i = {ratio}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that with one update per rollout the regression is a plain policy gradient."""
        return beside_anchor(run, self.anchor, self.name)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, and the anchor `ref` without a reference model."""
        lone = [
            "group_regression compares several completions of one prompt, but batch.group_size is 1. Use "
            "batch.group_size of 2 or more"
        ]
        return [*(lone if run.group_size == 1 else []), *anchored(run, self.anchor, self.name)]
