"""The KL to a teacher over the whole vocabulary: the single step of MiniLLM's gradient."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.metric import Metric
from grouprl.core.numbers import NonNegative
from grouprl.core.outputs import TEACHER_KL


@part("regularize")
class TeacherKL(Regularizer):
    """`coef` times Σ_v π(v)·log(π(v)/p(v)) at each position, p the reference as teacher (MiniLLM, arXiv:2306.08543).

    The policy computes it with its log-probs, `outputs={"teacher_kl": [B,T]}` of `method.loss`.
    """

    metrics: ClassVar = {
        TEACHER_KL: Metric(
            words="KL of the policy's next token to the teacher's, over the whole vocabulary, in nats",
            good="falling; 0 is a policy that is its teacher",
        ),
    }
    coef: NonNegative = 1.0
    asks = (TEACHER_KL,)
    reads = ("ref_bt",)
    one_policy = True
    in_parts = True
    says = "{coef:g} times the KL to the teacher at each position, over the whole vocabulary"
    equation = "+ {coef:g}·Σ_v π(v)·log(π(v)/π_ref(v))"
    plain = "loss = loss + {coef!r} * (weight_bt * torch.where(active_bt, stats['teacher_kl'], 0)).sum()"
    idle_at = ("coef", 0, "{name} has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return coef·KL of each position, with gradient in the output."""
        kl_bt = batch.stats.get(TEACHER_KL)
        if kl_bt is None:
            raise InputError(
                "the KL to the teacher is missing",
                f"{self.name} reads the sum over the vocabulary Σ_v π(v)·log(π(v)/p(v)) at each position, [B,T], whose "
                "gradient passes through the policy's distribution",
                'Pass outputs={"teacher_kl": kl_bt} to method.loss, or set single_step: sampled',
            )
        kl_bt = torch.where(batch.active_bt, kl_bt, 0)
        return TokenLoss(self.coef * kl_bt, {TEACHER_KL: kl_bt})

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference."""
        if run.has_reference or self.coef == 0:
            return []
        return ["teacher_kl compares with the reference. Set model.reference to the folder of a model"]
