"""A guard that keeps the likelihood of good completions from falling: LLDS (arXiv:2512.04220)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.core.batch import Batch
from grouprl.core.edges import beyond_rounding, beyond_rounding_code
from grouprl.core.numbers import NonNegative

Gate = Literal["run", "response", "none"]
_GATE = {
    "run": "in stretches between tool outputs whose total fell",
    "response": "in completions whose total fell",
    "none": "wherever a token fell",
}


@part("regularize")
class LikelihoodGuard(Regularizer):
    """Penalise tokens of completions with A ≥ 0 whose log-prob has fallen since the start of the update: λ·max(0, d_t).

    d_t = log π_old - log π. The gate (detached) opens only where Σd > 0 over the stretch of consecutive action tokens
    (`run`), over the whole completion (`response`), or always (`none`). Completions without advantage are guarded too.
    Before the first step of an update every d_t is 0: one that is as small as rounding pulls at no token.
    """

    coef: NonNegative = 0.2
    gate: Gate = "run"
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return λ·[A ≥ 0]·[Σd > 0]·max(0, d_t)."""
        active_bt = batch.active_bt
        fall_bt = beyond_rounding(torch.where(active_bt, batch.need("old_bt", self.name) - logp_bt, 0))
        keep_bt = active_bt & (batch.need("advantage_bt", self.name) >= 0) & self._open(fall_bt.detach(), active_bt)
        loss_bt = torch.where(keep_bt, self.coef * fall_bt.relu(), 0)
        return TokenLoss(loss_bt, {"guarded_fraction": (keep_bt & (fall_bt > 0)).to(loss_bt.dtype)})

    @override
    def code(self) -> str:
        lines = [
            "fall_bt = torch.where(active_bt, old_bt - logp_bt, 0)",
            f"fall_bt = {beyond_rounding_code('fall_bt')}  # beyond rounding",
        ]
        open_bt = "active_bt"
        if self.gate == "response":
            open_bt = "(fall_bt.sum(1, keepdim=True) > 0)"
        if self.gate == "run":
            open_bt = "(fall_bs.gather(1, run_bt) > 0)"
            lines += [
                "before_bt = torch.nn.functional.pad(active_bt, (1, 0))[:, :-1]",
                "run_bt = (active_bt & ~before_bt).cumsum(1)  # stretches between tool outputs",
                "zero_bs = fall_bt.new_zeros(len(fall_bt), fall_bt.shape[1] + 1)",
                "fall_bs = zero_bs.scatter_add(1, run_bt, fall_bt.detach())",
            ]
        return "\n".join(
            [
                *lines,
                f"keep_bt = active_bt & (adv_bt >= 0) & {open_bt}",
                f"loss = loss + {self.coef!r} * (weight_bt * torch.where(keep_bt, fall_bt.relu(), 0)).sum()",
            ]
        )

    def _open(self, fall_bt: Tensor, active_bt: Tensor) -> Tensor:
        """Return [B,T] bool: tokens whose stretch (or completion) became less likely as a whole."""
        if self.gate == "none":
            return active_bt
        if self.gate == "response":
            return (fall_bt.sum(1, keepdim=True) > 0).expand_as(active_bt)
        before_bt = torch.nn.functional.pad(active_bt, (1, 0))[:, :-1]
        run_bt = (active_bt & ~before_bt).cumsum(1)
        sum_bt = torch.zeros(len(fall_bt), fall_bt.shape[1] + 1, dtype=fall_bt.dtype, device=fall_bt.device)
        return sum_bt.scatter_add(1, run_bt, fall_bt).gather(1, run_bt) > 0

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows whose advantages are all negative."""
        guarded_bt = batch.active_bt & (batch.need("advantage_bt", self.name) >= 0)
        return super().zero_rows(batch) | ~guarded_bt.any(1)

    @override
    def words(self) -> str:
        return (
            f"{self.coef:g} times what tokens of completions with A ≥ 0 lost in log-prob since the start of the "
            "update, "
            f"{_GATE[self.gate]}"
        )

    @override
    def formula(self) -> str:
        gate = {"run": "·[Σ_run d > 0]", "response": "·[Σ_y d > 0]", "none": ""}[self.gate]
        return f"+ {self.coef:g}·[A ≥ 0]{gate}·max(0, d_t),  d_t = log π_old(y_t) - log π(y_t)"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the guard has no effect if its coefficient is 0 or with one update per rollout."""
        if self.coef == 0:
            return ["the likelihood guard has no effect: its coefficient is 0"]
        if run.updates_per_rollout == 1:
            return [
                "the likelihood guard has no effect: with one update per rollout nothing has fallen yet. "
                "Use batch.minibatches or batch.epochs of 2 or more"
            ]
        return []
