"""Detached multipliers of the policy loss; denominators and regularisers do not change.

The importance corrections compare the policy at the start of the update, as the trainer computes it, with the sampler
that produced the tokens: w = π_old / π_behavior.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.lines import is_from
from grouprl.algorithms.objective.ratio import LOG_LIMIT
from grouprl.algorithms.part import Part, RunFacts, part
from grouprl.algorithms.sources import PLURAL, Source
from grouprl.core.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor

MismatchLevel = Literal["token", "sequence", "sequence_sum"]


class TokenWeight(Part):
    """Base: factors [B,T] of the policy loss."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return factors [B,T]."""
        raise NotImplementedError


def mismatch_ratio(batch: Batch, level: MismatchLevel) -> Tensor:
    """Return [B,T] π_old/π_behavior per token, or of the whole sequence (product, or its |y|-th root), exponent within
    ±20.
    """
    behavior_bt = batch.need("behavior_bt", "the importance correction")
    log_bt = torch.where(batch.active_bt, batch.need("old_bt", "the importance correction") - behavior_bt, 0)
    if level != "token":
        sum_b = log_bt.sum(1)
        if level == "sequence":
            sum_b = sum_b / batch.active_bt.sum(1).clamp(min=1)
        log_bt = sum_b[:, None].expand_as(log_bt)
    return log_bt.clamp(-LOG_LIMIT, LOG_LIMIT).exp()


def mismatch_code(level: MismatchLevel) -> str:
    """Return the lines of plain torch that assign the ratio of `mismatch_ratio` to `sampler_bt`."""
    log = "torch.where(active_bt, old_bt - behavior_bt, 0)"
    if level != "token":
        mean = " / active_bt.sum(1, keepdim=True).clamp(min=1)" if level == "sequence" else ""
        log = f"({log}.sum(1, keepdim=True){mean})"
    return f"sampler_bt = {log}.clamp(-20, 20).exp()"


@part("token_weight")
class OffPolicyMask(TokenWeight):
    """Zero the loss of wrong completions that the policy has left: A < 0 and mean_t(log π_behavior - log π_old) >
    delta.

    DeepSeek-V3.2 (2025); judged by the policy's log-probs at the start of the update.
    """

    delta: Annotated[float, Field(gt=0)] = 0.5
    says = "ignore completions of negative advantage that the policy has left by more than {delta:g} nats a token"
    equation = "× (1 - [A < 0 and mean_t(log π_behavior - log π_old) > {delta:g}])"
    reads = ("old_bt", "behavior_bt")

    def __call__(self, batch: Batch) -> Tensor:
        """Return 0 where A < 0 and the sequence is off-policy by more than delta nats per token, else 1."""
        gap_bt = mismatch_ratio(batch, "sequence").log()
        far_bt = (batch.need("advantage_bt", self.name) < 0) & (-gap_bt > self.delta)
        return 1 - far_bt.to(batch.dtype)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if the sampler is exact."""
        return ["off_policy_mask has no effect: the sampler is exact"] if run.exact_sampler else []


@part("token_weight")
class WithoutPolicyLoss(TokenWeight):
    """Rows of one source have no policy loss; regularisers still see them."""

    source: Source = "reference"

    def __call__(self, batch: Batch) -> Tensor:
        """Return 0 on the source's rows, else 1."""
        return batch.broadcast((~batch.from_source(self.source)).to(batch.dtype))

    @override
    def code(self) -> str:
        return f"factor_bt = factor_bt * (~({is_from(self.source)}))[:, None]"

    @override
    def words(self) -> str:
        return f"{PLURAL[self.source]} take no part in the policy loss, only in regularisers"

    @override
    def formula(self) -> str:
        return f"× 0 on {PLURAL[self.source]}"
