"""Advantages by what a teacher thinks of the tokens: MiniLLM's reverse KL."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.advantage.returns import discounted
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Share


@part("advantage")
class TeacherToGo(Advantage):
    """A_t = Σ_{k≥t} γ^{k-t}·log(p(y_k)/π_old(y_k)), p the reference as teacher (MiniLLM, arXiv:2306.08543).

    Its policy gradient is that of the reverse KL, KL(π || p). `normalized` divides by Σ_{k≥t} γ^{k-t}, so that short
    completions are not preferred because they have fewer terms.
    """

    gamma: Share = 1.0
    normalized: bool = True
    reads = ("old_bt", "ref_bt")

    def __call__(self, batch: Batch) -> Tensor:
        """Return the advantages A_t [B,T] in nats."""
        gain_bt = torch.where(batch.mask_bt, batch.need("ref_bt", self.name) - batch.need("old_bt", self.name), 0)
        factor_b = torch.full_like(batch.reward_b, self.gamma)
        to_go_bt = discounted(gain_bt, batch.mask_bt, factor_b)
        if not self.normalized:
            return to_go_bt
        return to_go_bt / discounted(batch.mask_bt.to(batch.dtype), batch.mask_bt, factor_b).clamp(min=1)

    def words(self) -> str:
        """Say what is compared."""
        mean = "the mean" if self.normalized else "the sum"
        return f"{mean} of log(teacher/policy) from each token on, discount {self.gamma:g}"

    def formula(self) -> str:
        """Return the formula."""
        share = "" if self.gamma == 1 else f"{self.gamma:g}^(k-t)·"
        over = f" / Σ_{{k≥t}} {share.rstrip('·') or '1'}" if self.normalized else ""
        return f"A_t = Σ_{{k≥t}} {share}(log π_ref - log π_old)(y_k){over}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        lines = [
            f"gamma_b = torch.full_like(reward_b, {self.gamma!r})",
            "gain_bt = torch.where(mask_bt, ref_bt - old_bt, 0)",
            "adv_bt = discounted(gain_bt, mask_bt, gamma_b)",
        ]
        if self.normalized:
            lines.append("adv_bt = adv_bt / discounted(mask_bt.to(reward_b.dtype), mask_bt, gamma_b).clamp(min=1)")
        return "\n".join(lines)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run whose reference is the policy's own beginning, with which it always agrees, or that has none."""
        if run.has_reference and run.named_reference:
            return []
        return [
            "the teacher is the reference, and model.reference names no model: the policy would be its own teacher, "
            "from which it learns nothing. Set it to the folder of a model"
        ]
