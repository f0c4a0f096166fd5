"""A log-ratio to a mixture, in log-probs, of the frozen reference and an earlier iterate."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.references import Iterates, ReferenceRule
from grouprl.algorithms.score.score import Score, over_code, over_tokens
from grouprl.core.batch import Batch
from grouprl.core.numbers import Count, Share


@part("score")
class MixedRatio(Score):
    """log π - ρ·log π_ref - (1-ρ)·log π_t, summed over the completion (INPO, arXiv:2407.00617: ρ = τ/η).

    π_t is the policy as it was when the round began; a round has `every` steps.
    """

    share: Share = 1 / 3
    every: Count = 1

    def references(self) -> Mapping[str, ReferenceRule]:
        """Return the rule of the earlier iterate, where it has a share."""
        return {"iterates": Iterates(self.every)} if self.share < 1 else {}

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return Σ_t [log π - ρ·log π_ref - (1-ρ)·log π_t](y_t)."""
        for name, weight in self._weights().items():
            logp_bt = logp_bt - weight * batch.need(name, self.name)
        return over_tokens(logp_bt, batch, "sum")

    def _weights(self) -> dict[str, float]:
        both = {"ref_bt": self.share, "refs.iterates": 1 - self.share}
        return {name: weight for name, weight in both.items() if weight > 0}

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        named = {"ref_bt": "ref_bt", "refs.iterates": "refs['iterates']"}
        less = "".join(f" - {weight!r} * {named[name]}" for name, weight in self._weights().items())
        return over_code(f"logp_bt{less}", "sum")

    @override
    def needs(self) -> tuple[str, ...]:
        return tuple(self._weights())

    @override
    def words(self) -> str:
        rounds = "the last step's policy" if self.every == 1 else f"the policy {self.every} steps ago or less"
        return f"the log-prob less {self.share:.3g} of the reference's and {1 - self.share:.3g} of that of {rounds}"

    @override
    def formula(self) -> str:
        return f"s(y) = Σ_t [log π - {self.share:.3g}·log π_ref - {1 - self.share:.3g}·log π_iterates](y_t)"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a share of the reference without a reference model."""
        if self.share > 0 and not run.has_reference:
            return [f"{self.name} compares with a reference model. Set model.reference: initial, or share to 0"]
        return []
