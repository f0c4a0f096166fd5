"""Entropy control by what is reinforced: correct completions, weighted towards a hotter or a cooler policy."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.objective.ratio import LOG_LIMIT
from grouprl.algorithms.outcome import right
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive


@part("advantage_transform")
class TemperedBlend(AdvantageTransform):
    """Blend in correct completions weighted by a tempered policy (DCPO, distribution-centric, arXiv:2601.12730).

    A ← (1-α)A + α·[right]·q, q = π_T(y_t)/π(y_t) with T = `hot` while the entropy H of the last step is at most
    `target`, else `cold`. With c the share of correct completions of the batch, α = x/(c + x), x = min(|target - H|,
    limit); α = 0 without a correct completion. In step 0 there is no entropy yet: H = 0.
    """

    target: Annotated[float, Field(ge=0)] = 0.25
    limit: Annotated[float, Field(ge=0)] = 0.1
    hot: Positive = 1.2
    cold: Positive = 0.8
    says = (
        "correct completions get up to {limit:g} of weight towards the policy at temperature {hot:g} while the "
        "entropy is at most {target:g}, towards {cold:g} above it"
    )
    plain = (
        "right_b = (correct_b & counts_b).to(adv_bt.dtype)\n"
        "share, entropy = right_b.sum() / counts_b.sum().clamp(min=1), last_entropy if step > 0 else 0.0\n"
        "gap = min(abs({target!r} - entropy), {limit!r})\n"
        "alpha = torch.where(share > 0, gap / (share + gap).clamp(min=1e-30), 0)\n"
        'tempered_bt = stats["logp@{hot:g}"] if entropy <= {target!r} else stats["logp@{cold:g}"]\n'
        "tilt_bt = (tempered_bt - old_bt).clamp(-20, 20).exp()\n"
        "adv_bt = (1 - alpha) * adv_bt + alpha * right_b[:, None] * tilt_bt"
    )
    idle_at = ("limit", 0, "tempered_blend has no effect: its limit is 0")

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return (1-α)A + α·[right]·q."""
        right_b = (right(batch) & batch.stats_b).to(adv_bt.dtype)
        share = right_b.sum() / batch.stats_b.sum().clamp(min=1)
        entropy = self.entropy_before(batch)
        gap = min(abs(self.target - entropy), self.limit)
        alpha = torch.where(share > 0, gap / (share + gap).clamp(min=1e-30), 0)
        return (1 - alpha) * adv_bt + alpha * right_b[:, None] * self._weights(batch, entropy)

    def entropy_before(self, batch: Batch) -> float:
        """Return the entropy of the last step in nats; 0 in step 0."""
        if batch.need("step", self.name) == 0:
            return 0.0
        return float(batch.need("last_entropy", self.name))

    def _weights(self, batch: Batch, entropy: float) -> Tensor:
        """Return [B,T] π_T(y_t)/π(y_t)."""
        hot_bt, cold_bt = (batch.need(name, self.name) for name in self._readings())
        tempered_bt = hot_bt if entropy <= self.target else cold_bt
        return (tempered_bt - batch.need("old_bt", self.name)).clamp(-LOG_LIMIT, LOG_LIMIT).exp()

    def _readings(self) -> tuple[str, str]:
        return f"stats.logp@{self.hot:g}", f"stats.logp@{self.cold:g}"

    @override
    def needs(self) -> tuple[str, ...]:
        return ("step", "last_entropy", "old_bt", *self._readings())

    @override
    def formula(self) -> str:
        x = f"x = min(|{self.target:g} - H|, {self.limit:g})"
        return f"A ← (1-α)A + α·[right]·π_T(y_t)/π(y_t),  α = x/(c + x), {x}, c the share of correct completions"
