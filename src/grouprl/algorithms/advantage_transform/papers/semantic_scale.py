"""Advantages that count less where a group's final answers differ (SEED-GRPO)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("advantage_transform")
class SemanticScale(AdvantageTransform):
    """Scale a group's advantages down by the entropy of its final answers' likelihoods (SEED-GRPO,
    arXiv:2505.12346).

    P_k ∝ Σ_{i in k} exp(mean_t log π_behavior(y_i,t)) over the completions with the final answer k (`keys.answer`);
    SE = -Σ_k P_k log P_k, at most log G. With x = α·SE/log G (`normalized`) or α·SE: A times 1/(1 + x), max(1 - x, 0)
    or exp(-x).
    """

    alpha: Annotated[float, Field(ge=0)] = 0.0417
    curve: Literal["inverse", "linear", "exp"] = "inverse"
    normalized: bool = True
    reads = ("keys.answer", "behavior_bt")
    idle_at = ("alpha", 0, "semantic_scale has no effect: alpha is 0")

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A·f(SE)."""
        entropy_b = self.semantic_entropy(batch)
        if self.normalized:
            size_b = levels.count(batch.group_b, batch.stats_b, batch.dtype)
            entropy_b = entropy_b / torch.where(size_b > 1, size_b.clamp(min=2).log(), 1)
        x_b = self.alpha * entropy_b
        factor_b = {"inverse": 1 / (1 + x_b), "linear": (1 - x_b).clamp(min=0), "exp": (-x_b).exp()}[self.curve]
        return adv_bt * factor_b[:, None]

    @override
    def code(self) -> str:
        curve = {
            "inverse": "1 / (1 + x_b)",
            "linear": "(1 - x_b).clamp(min=0)",
            "exp": "(-x_b).exp()",
        }[self.curve]
        size = "same_bb.sum(1).clamp(min=2).to(adv_bt.dtype).log()"
        normed = f"entropy_b = entropy_b / torch.where(same_bb.sum(1) > 1, {size}, 1)\n" if self.normalized else ""
        return (
            "log_b = torch.where(mask_bt, behavior_bt, 0).sum(1) / mask_bt.sum(1).clamp(min=1)\n"
            "top_b = torch.where(same_bb & mask_bt.any(1), log_b, -torch.inf).amax(1)\n"
            "mass_b = (log_b - top_b).exp() * (counts_b & mask_bt.any(1))\n"
            "share_b = mass_b / (same_bb * mass_b).sum(1).clamp(min=1e-30)\n"
            'answer_bb = same_bb & (keys["answer"][:, None] == keys["answer"])\n'
            "answer_b = (answer_bb * share_b).sum(1)  # the likelihood of the row's final answer\n"
            "entropy_b = -(same_bb * share_b * answer_b.clamp(1e-30, 1).log()).sum(1)\n"
            f"{normed}"
            f"x_b = {self.alpha!r} * entropy_b\n"
            f"adv_bt = adv_bt * ({curve})[:, None]"
        )

    def semantic_entropy(self, batch: Batch) -> Tensor:
        """Return [B] semantic entropy of each row's group, in nats."""
        counted_b = (batch.stats_b & (batch.length_b > 0)).to(batch.dtype)
        log_bt = torch.where(batch.mask_bt, batch.need("behavior_bt", self.name), 0)
        log_b = log_bt.sum(1) / batch.length_b.clamp(min=1)
        mass_b = (log_b - levels.extreme(log_b, batch.group_b, counted_b, largest=True)).exp() * counted_b
        share_b = mass_b / levels.total(mass_b, batch.group_b).clamp(min=1e-30)
        cluster_b = levels.total(share_b, levels.cross(batch.group_b, batch.need("keys.answer", self.name)))
        return -levels.total(share_b * cluster_b.clamp(1e-30, 1).log(), batch.group_b)

    @override
    def words(self) -> str:
        of = "relative to its maximum" if self.normalized else "in nats"
        return (
            "scale advantages down where the group's likely completions disagree: "
            f"{self.curve} in {self.alpha:g} times their entropy {of}"
        )

    @override
    def formula(self) -> str:
        factor = {"inverse": "1/(1+x)", "linear": "max(1-x, 0)", "exp": "e^(-x)"}[self.curve]
        return f"A ← A · {factor},  x = {self.alpha:g}·SE{'/log G' if self.normalized else ''}"
