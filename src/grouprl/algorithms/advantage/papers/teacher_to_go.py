"""Advantages by what a teacher thinks of the tokens: MiniLLM's reverse KL."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.advantage.returns import discounted, next_value
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Share


@part("advantage")
class TeacherToGo(Advantage):
    """A_t = Σ_{k≥t} γ^{k-t}·log(p(y_k)/π_old(y_k)), p the reference as teacher (MiniLLM, arXiv:2306.08543).

    Its policy gradient is that of the reverse KL, KL(π || p). `normalized` divides by Σ_{k≥t} γ^{k-t}, so that short
    completions are not preferred because they have fewer terms. `own: false` leaves out k = t, in both sums, where
    another term of the loss sums that step over the vocabulary; the last token then has none.
    """

    gamma: Share = 1.0
    normalized: bool = True
    own: bool = True
    reads = ("old_bt", "ref_bt")

    def __call__(self, batch: Batch) -> Tensor:
        """Return the advantages A_t [B,T] in nats."""
        gain_bt = torch.where(batch.mask_bt, batch.need("ref_bt", self.name) - batch.need("old_bt", self.name), 0)
        to_go_bt = self._summed(gain_bt, batch)
        if not self.normalized:
            return to_go_bt
        share_bt = self._summed(batch.mask_bt.to(batch.dtype), batch)
        return to_go_bt / torch.where(share_bt > 0, share_bt, 1)

    def _summed(self, term_bt: Tensor, batch: Batch) -> Tensor:
        """Return Σ_{k≥t} γ^{k-t}·term_k, or Σ_{k>t} where the own step is left out."""
        factor_b = torch.full_like(batch.reward_b, self.gamma)
        if self.own:
            return discounted(term_bt, batch.mask_bt, factor_b)
        none_b = torch.zeros_like(batch.reward_b)
        return self.gamma * next_value(discounted(term_bt, batch.mask_bt, factor_b), batch.mask_bt, none_b)

    def words(self) -> str:
        """Say what is compared."""
        mean, start = "the mean" if self.normalized else "the sum", "each token" if self.own else "each token's next"
        return f"{mean} of log(teacher/policy) from {start} on, discount {self.gamma:g}"

    def formula(self) -> str:
        """Return the formula."""
        share = "" if self.gamma == 1 else f"{self.gamma:g}^(k-t)·"
        from_ = "k≥t" if self.own else "k>t"
        over = f" / Σ_{{{from_}}} {share.rstrip('·') or '1'}" if self.normalized else ""
        return f"A_t = Σ_{{{from_}}} {share}(log π_ref - log π_old)(y_k){over}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        lines = [
            f"gamma_b = torch.full_like(reward_b, {self.gamma!r})",
            "gain_bt = torch.where(mask_bt, ref_bt - old_bt, 0)",
            f"adv_bt = {self._summed_code('gain_bt')}",
        ]
        if self.normalized:
            share = self._summed_code("mask_bt.to(reward_b.dtype)")
            lines += [f"share_bt = {share}", "adv_bt = adv_bt / torch.where(share_bt > 0, share_bt, 1)"]
        return "\n".join(lines)

    def _summed_code(self, term: str) -> str:
        whole = f"discounted({term}, mask_bt, gamma_b)"
        return whole if self.own else f"{self.gamma!r} * next_value({whole}, mask_bt, torch.zeros_like(reward_b))"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run whose reference is the policy's own beginning, with which it always agrees, or that has none."""
        if run.has_reference and run.named_reference:
            return []
        return [
            "the teacher is the reference, and model.reference names no model: the policy would be its own teacher, "
            "from which it learns nothing. Set it to the folder of a model"
        ]
