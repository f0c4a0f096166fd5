"""Scores for divergences other than the reverse KL: f-DPO's transforms of the log-ratio."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from typing_extensions import override

from grouprl.algorithms.objective.ratio import held
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.score.score import Length, LogRatio, Score, without_reference
from grouprl.core.batch import Batch

Divergence = Literal["reverse_kl", "forward_kl", "js", "alpha"]
HIGHEST = 80.0
"""Largest exponent, whose exponential float32 still holds."""
_F = {
    "reverse_kl": "u",
    "forward_kl": "1 - e^(-u)",
    "js": "log 2 + log σ(u)",
    "alpha": "(e^((a-1)u) - 1)/(a-1)",
}


@part("score")
class FDivergence(Score):
    """f'(e^u) of a log-ratio u, for a penalty with an f-divergence other than the reverse KL (arXiv:2309.16240).

    With the offsets of TRL 1.16 every transform is 0 at u = 0, where its slope is 1, that of `js` ½; `alpha` 1 is the
    reverse KL, 0 the forward KL. `length` divides the transformed score by the completion's tokens. Exponents are held
    at 80 or below, with their slope; TRL bounds those of `alpha` there, without slope.
    """

    of: Score = LogRatio()
    divergence: Divergence = "js"
    alpha: float = 0.5
    length: Length = "sum"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return f'(e^u), [B]."""
        return self._scaled(self.transformed(self.of(logp_bt, batch)), batch.active_bt.sum(1))

    def of_pairs(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return f'(e^u) of both completions of each pair, [E,2]."""
        log_e2 = self.of.of_pairs(logp_bt, batch, index_e2)
        return self._scaled(self.transformed(log_e2), batch.active_bt.sum(1)[index_e2])

    @override
    def implicit(self) -> Score:
        return self.of.implicit()

    def transformed(self, log: Tensor) -> Tensor:
        """Return f'(e^u) from the log-ratios u, of any shape."""
        if self.divergence == "forward_kl":
            return -torch.expm1(held(-log, None, HIGHEST))
        if self.divergence == "js":
            return math.log(2) + logsigmoid(log)
        if self.divergence == "reverse_kl" or abs(self.alpha - 1) < 1e-6:
            return log
        return torch.expm1(held((self.alpha - 1) * log, None, HIGHEST)) / (self.alpha - 1)

    def _scaled(self, score: Tensor, length: Tensor) -> Tensor:
        return score if self.length == "sum" else score / length.clamp(min=1)

    @override
    def words(self) -> str:
        how = "" if self.length == "sum" else ", divided by its length"
        name = f"alpha ({self.alpha:g})" if self.divergence == "alpha" else self.divergence.replace("_", " ")
        return f"what the divergence {name} makes of the completion's log-ratio{how}"

    @override
    def formula(self) -> str:
        f, what = _F[self.divergence].replace("a", f"{self.alpha:g}"), self.of.formula().replace("s(y)", "u(y)")
        return f"s(y) = {'' if self.length == 'sum' else '1/|y| · '}[{f}],  {what}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that `alpha` has no effect with another divergence."""
        if self.alpha != 0.5 and self.divergence != "alpha":
            return [f"f_divergence.alpha = {self.alpha:g} has no effect: the divergence is {self.divergence}"]
        return []

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model if the score within needs none by itself."""
        return [] if "ref_bt" not in self.of.needs() else without_reference(run, self.name)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        lines = self.of.code()
        if "score_2e" in lines or not lines:
            return ""
        high = f"None, {HIGHEST!r}"
        made = {
            "forward_kl": f"-torch.expm1(held(-score_b, {high}))",
            "js": "math.log(2) + torch.nn.functional.logsigmoid(score_b)",
            "alpha": f"torch.expm1(held({self.alpha - 1!r} * score_b, {high})) / {self.alpha - 1!r}",
        }
        plain = self.divergence == "reverse_kl" or (self.divergence == "alpha" and abs(self.alpha - 1) < 1e-6)
        mean = "" if self.length == "sum" else " / active_bt.sum(1).clamp(min=1)"
        return f"{lines}\nscore_b = ({'score_b' if plain else made[self.divergence]}){mean}"
