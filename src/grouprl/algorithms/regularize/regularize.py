"""Regularisers: extra token losses added to the policy loss, with its aggregation weights or their own.

Importance multipliers do not apply to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.aggregate.aggregate import Aggregate
from grouprl.algorithms.building import build_part
from grouprl.algorithms.losses import Losses, TokenLoss
from grouprl.algorithms.objective.ratio import RatioLevel, log_ratio, ratio_code
from grouprl.algorithms.part import Part, RunFacts, part
from grouprl.algorithms.regularize.kl import CODE, FORMULA, GRADIENT, Estimator, estimate
from grouprl.core.batch import Batch
from grouprl.core.edges import flat_within_rounding_code
from grouprl.core.errors import InputError
from grouprl.core.numbers import NonNegative

if TYPE_CHECKING:
    from torch import Tensor

OwnAggregate = (
    Literal["token_mean", "sequence_mean", "sequence_sum", "token_sum", "constant_length", "group_mean"] | None
)
"""The aggregation of a term's token losses; None: as in the policy loss."""


class Regularizer(Part):
    """Base: extra token losses from log-probs, the batch and, if requested, entropies."""

    beyond: ClassVar[bool] = False
    """Whether the term reads log-probs of tokens that the policy did not write; if not, these are 0."""
    coef: float

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> Losses:
        """Return losses, differentiable in `logp_bt` and `entropy_bt` ([B,T])."""
        raise NotImplementedError

    def compute_loss_weights(self, batch: Batch) -> Batch:
        """Return an optimiser step with the weights that `weights` reads, computed from all rows of the step."""
        own = getattr(self, "aggregate", None)
        if own is None:
            return batch
        built = cast("Aggregate", build_part("aggregate", own, {}))
        return batch.replace(stats={**batch.stats, f"weight.{own}": built(batch)})

    def weights(self, batch: Batch) -> Tensor:
        """Return [B,T] weights of the token losses in their sum."""
        own = getattr(self, "aggregate", None)
        weight_bt: Tensor = batch.need("weight_bt" if own is None else f"stats.weight.{own}", self.name)
        return weight_bt

    def added(self, term_bt: str) -> str:
        """Return the lines of plain torch that add `coef` times the expression `term_bt`, aggregated as the part
        says.
        """
        own, line = getattr(self, "aggregate", None), f"loss = loss + {self.coef!r} * (weight_bt * {term_bt}).sum()"
        if own is None:
            return line
        built = build_part("aggregate", own, {}).code()
        return f"policy_weight_bt = weight_bt\n{built}\n{line}\nweight_bt = policy_weight_bt"

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows whose gradient is exactly zero whatever the log-probs are."""
        return torch.full_like(batch.group_b, self.coef == 0, dtype=torch.bool)


@part("regularize")
class KLLoss(Regularizer):
    """β times an estimate of KL(π || anchor) as a loss term (GRPO, arXiv:2402.03300, eq. 4, has k3).

    `anchor`: the reference model, the policy at the start of the update, or the sampler. `value_limit` clamps the
    estimate, as in verl: beyond it the gradient is zero, except that of an estimator with '+'. `ratio` is the level of
    the ratio that weighs `weighted_k3` (the bias correction of DeepSeek-V3.2; at sequence level as in TRL with
    importance_sampling_level='sequence'). `aggregate` aggregates the term in a way of its own.
    """

    coef: NonNegative = 0.04
    estimator: Estimator = "k3"
    anchor: Literal["ref", "old", "behavior"] = "ref"
    value_limit: Annotated[float, Field(gt=0)] | None = None
    ratio: RatioLevel = "token"
    aggregate: OwnAggregate = None

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return β·k(d_t) with d_t = log π(y_t) - log π_anchor(y_t)."""
        log_bt = torch.where(batch.active_bt, logp_bt - batch.need(f"{self.anchor}_bt", self.name), 0)
        if self.estimator == "weighted_k3":
            value_bt = log_ratio(logp_bt, batch, self.ratio).exp() * estimate(log_bt, "k3", self.value_limit)
        else:
            value_bt = estimate(log_bt, self.estimator, self.value_limit)
        return TokenLoss(self.coef * value_bt, {"kl_ref": log_bt} if self.anchor == "ref" else {})

    @override
    def code(self) -> str:
        kind = "k3" if self.estimator == "weighted_k3" else self.estimator.removesuffix("+")
        lines = [
            f"d_bt = torch.where(active_bt, logp_bt - {self.anchor}_bt, 0)",
            *([] if self.estimator == "k1" else [f"d_bt = {flat_within_rounding_code('d_bt')}"]),
            f"kl_bt = {CODE[kind]}",
        ]
        if self.value_limit is not None:
            lines.append(f"kl_bt = kl_bt.clamp({-self.value_limit!r}, {self.value_limit!r})")
        if self.estimator.endswith("+"):
            lines.append("kl_bt = kl_bt.detach() + d_bt.square() / 2 - (d_bt.square() / 2).detach()")
        if self.estimator == "weighted_k3":
            lines += [*ratio_code(self.ratio, "old"), "kl_bt = ratio_bt * kl_bt"]
        return "\n".join([*lines, self.added("kl_bt")])

    @override
    def needs(self) -> tuple[str, ...]:
        weighted = ("old_bt",) if self.estimator == "weighted_k3" else ()
        return tuple(dict.fromkeys((f"{self.anchor}_bt", *weighted)))

    @override
    def words(self) -> str:
        anchor = {
            "ref": "the reference model",
            "old": "the policy at the start of the update",
            "behavior": "the policy that sampled the token",
        }[self.anchor]
        limits = "" if self.value_limit is None else f", each estimate within ±{self.value_limit:g}"
        own = "" if self.aggregate is None else f", added up by {self.aggregate}"
        estimator = f"{self.estimator} ({GRADIENT[self.estimator]})"
        return f"{self.coef:g} times KL to {anchor}, estimator {estimator}{limits}{own}"

    @override
    def formula(self) -> str:
        return f"+ {self.coef:g} · [{FORMULA[self.estimator]}],  d = log π(y_t) - log π_{self.anchor}(y_t)"

    def idle(self, run: RunFacts) -> list[str]:
        """Say when the term has no effect: no coefficient, no gradient on average, or no distance."""
        if self.coef == 0:
            return ["the KL term has no effect: its coefficient is 0"]
        if self.estimator == "k1":
            return ["the KL term k1 as a loss has no effect on average: its expected gradient is 0. Use k2, k3 or k3+"]
        if self.anchor == "old" and run.updates_per_rollout == 1:
            return ["the KL to the old policy has no effect: with one update per rollout the policies are the same"]
        if self.ratio != "token" and self.estimator != "weighted_k3":
            return [f"kl_loss.ratio = {self.ratio} has no effect: only the estimator weighted_k3 has a ratio"]
        return []

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse the anchor `ref` without a reference model."""
        if self.anchor == "ref" and self.coef > 0 and not run.has_reference:
            return ["the KL term needs a reference model. Set model.reference: initial, or the KL coefficient to 0"]
        return []


@part("regularize")
class EntropyBonus(Regularizer):
    """Reward the policy's entropy: -c·H_t (Williams and Peng 1991; PPO, arXiv:1707.06347, eq. 9)."""

    coef: NonNegative = 0.01
    aggregate: OwnAggregate = None
    asks = ("entropy",)
    equation = "- {coef:g} · H_t"
    idle_at = ("coef", 0, "the entropy bonus has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return -c·H_t."""
        if entropy_bt is None:
            raise InputError(
                "the entropy bonus got no entropies",
                "its gradient passes through the entropy of every token's distribution",
                "Pass entropy_bt to method.loss",
            )
        return TokenLoss(-self.coef * entropy_bt, {})

    @override
    def code(self) -> str:
        return "" if self.aggregate else f"loss = loss - {self.coef!r} * (weight_bt * entropy_bt).sum()"

    @override
    def words(self) -> str:
        own = "" if self.aggregate is None else f", added up by {self.aggregate}"
        return f"an entropy bonus of weight {self.coef:g} per token{own}"
