"""The KL of a reward model's belief about a user from its prior (VPL)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import PairLoss, out_of, pairs_of
from grouprl.algorithms.objective.pair import PAIRS
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.numbers import Count, NonNegative, Share
from grouprl.core.outputs import USER_KL


@part("regularize")
class UserKL(Regularizer):
    """`coef`·β(step) times KL(q(z | judgements) || N(0, I)) of each pair's user (VPL, arXiv:2408.10075).

    β rises from `low` to 1 along half a cosine in `period` steps, and begins anew.
    """

    coef: NonNegative = 3e-6
    low: Share = 0.1
    period: Count = 10_000
    log_probs: ClassVar[bool] = False
    couples: ClassVar[str] = "group"
    asks = (USER_KL,)
    reads = ("step",)
    says = "{coef:g} times the KL of what the model believes of the user from what it believes of nobody, in cycles"
    equation = "{coef:g}·β(step)·KL(q(z | judgements) || N(0, I))"

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> PairLoss:
        """Return coef·β·KL of each pair: the mean of its two rows, which have one user."""
        kl_e2 = batch.need(f"row_outputs.{USER_KL}", self.name)[pairs_of(batch, self.name).index_e2]
        kl_e = kl_e2.mean(1)
        return PairLoss(self.coef * self.weight(batch.need("step", self.name)) * kl_e, {"user_kl": kl_e})

    def weight(self, step: int) -> float:
        """Return β at a step."""
        return self.low + (1 - self.low) * (1 - math.cos(math.pi * (step % self.period) / self.period)) / 2

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that are in no pair, or all where the weight is 0."""
        out_b: Tensor = out_of(pairs_of(batch, self.name).index_e2, batch)
        return out_b if self.coef else torch.ones_like(out_b)

    @override
    def code(self) -> str:
        rise = f"(1 - math.cos(math.pi * (step % {self.period}) / {self.period})) / 2"
        return "\n".join(
            [
                PAIRS,
                f"beta = {self.low!r} + {1 - self.low!r} * {rise}",
                f"user_kl_e = {self.coef!r} * beta * row_outputs['{USER_KL}'][index_2e].mean(0)",
                "user_kl_b = pairs_to_rows(user_kl_e, index_2e, group_b, known_b)",
                "loss = loss + (weight_bt * user_kl_b[:, None] * active_bt).sum()",
            ]
        )
