"""Detached factors of the policy loss that follow the policy through the update.

Token weights are fixed when the rollout is prepared; a gate is computed anew at each optimiser step, from the log-probs
and entropies at that step. Denominators and regularisers do not change.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.filter.filter import MASKED
from grouprl.algorithms.objective.objective import idle_ratio
from grouprl.algorithms.objective.ratio import Against
from grouprl.algorithms.part import Part, RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import Share


class TokenGate(Part):
    """Base: factors [B,T] of the policy loss from the policy's current log-probs and entropies."""

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> Tensor:
        """Return factors [B,T]; `logp_bt` and `entropy_bt` are detached."""
        raise NotImplementedError


def with_loss(batch: Batch) -> Tensor:
    """Return [B,T] bool: tokens that have a loss: active ones without those that are masked."""
    return batch.active_bt & ~batch.marks[MASKED] if MASKED in batch.marks else batch.active_bt


def top_entropy(entropy_bt: Tensor | None, batch: Batch, share: float, reader: str) -> Tensor:
    """Return [B,T] bool: tokens of the step whose entropy is at least the (1 - share)-quantile, interpolated linearly.

    Raises:
        InputError: there are no entropies; the message names `reader`, which needs them.
    """
    if entropy_bt is None:
        raise InputError(
            f"{reader} got no entropies",
            "it ranks tokens by the policy's entropies at this optimiser step",
            "Pass entropy_bt to method.loss",
        )
    candidate_bt = with_loss(batch)
    entropy_n = entropy_bt.detach()[candidate_bt].sort(descending=True).values
    if not len(entropy_n):
        return candidate_bt
    last = int(share * (len(entropy_n) - 1) + 1e-9)  # what is interpolated lies between this one and the next
    return candidate_bt & (entropy_bt.detach() >= entropy_n[last])


@part("token_gate")
class TopEntropy(TokenGate):
    """Only the tokens of the optimiser step with the largest current entropies have a policy loss (arXiv:2506.01939).

    The threshold is the (1 - share)-quantile over the step's tokens, as in TRL's `top_entropy_quantile`; a share of 0
    leaves the token of largest entropy. `top_tokens` ranks the whole rollout once, by the entropies of sampling.
    """

    share: Share = 0.2
    couples: ClassVar[str] = "batch"
    asks = ("entropy",)
    says = "only the {share:.0%} of the optimiser step's tokens with the largest current entropy have a policy loss"
    equation = "[H_t ≥ quantile of the step's tokens, upper {share:g}]"
    idle_at = ("share", 1, "top_entropy has no effect: its share is 1")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> Tensor:
        """Return [H_t ≥ quantile]."""
        return top_entropy(entropy_bt, batch, self.share, f"the gate {self.name}").to(batch.dtype)


@part("token_gate")
class LeftBehind(TokenGate):
    """Completions with A < 0 that the policy has left have no policy loss: mean_t(log π_behavior - log π) > threshold.

    Off-policy sequence masking of DeepSeek-V3.2 (arXiv:2512.02556, eq. 9), as in TRL's `off_policy_mask_threshold`: it
    sees what the update itself has moved as well as the gap between sampler and trainer. `off_policy_mask` looks once,
    before the update.
    """

    threshold: Annotated[float, Field(gt=0)] = 0.5
    against: Against = "behavior"
    equation = "[A ≥ 0 or mean_t(log π_{against} - log π) ≤ {threshold:g}]"
    reads = ("{against}_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> Tensor:
        """Return 0 where A < 0 and the completion is left behind, else 1, [B,T]."""
        active_bt = with_loss(batch)
        gap_bt = torch.where(active_bt, batch.need(f"{self.against}_bt", self.name) - logp_bt.detach(), 0)
        gap_b = gap_bt.sum(1) / active_bt.sum(1).clamp(min=1)
        far_bt = (batch.need("advantage_bt", self.name) < 0) & (gap_b > self.threshold)[:, None]
        return 1 - far_bt.to(batch.dtype)

    @override
    def words(self) -> str:
        than = "it sampled them" if self.against == "behavior" else "the start of the update"
        return (
            "completions of negative advantage have no policy loss once the policy has moved away by more than "
            f"{self.threshold:g} nats a token since {than}"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the gate has no effect if the policy cannot have moved."""
        return idle_ratio(run, self.against, f"the gate {self.name}")
