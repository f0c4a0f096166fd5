"""AOT: chosen scores are compared with rejected ones of equal rank, over all pairs of an optimiser step."""

from __future__ import annotations

import re
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import LogRatio, Score, pairs_code
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError


@part("score")
class SortedScores(Score):
    """The scores of all chosen and of all rejected completions, each sorted (AOT unpaired, arXiv:2406.05882).

    The k-th smallest chosen score meets the k-th smallest rejected one, whichever pair they come from: the loss asks
    that one distribution lie above the other. All pairs of the optimiser step are sorted together.
    """

    of: Score = LogRatio()
    couples: ClassVar[str] = "batch"
    ranked: ClassVar[bool] = True
    says = "chosen and rejected scores of the whole step, each sorted: those of equal rank are compared"

    @override
    def implicit(self) -> Score:
        return self.of.implicit()

    def of_pairs(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return the chosen and the rejected scores, each in ascending order, [E,2]."""
        return self.of.of_pairs(logp_bt, batch, index_e2).sort(0).values

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return f"{held}\nscore_2e = score_2e.sort(1).values" if (held := pairs_code(self.of)) else ""

    @override
    def formula(self) -> str:
        return f"Δs_k = s_(k)(chosen) - s_(k)(rejected), sorted over the step,  {self.of.formula()}"


@part("score")
class SortedGaps(Score):
    """The gaps log π(w) - log π(l) of all pairs and those of π_ref, each sorted (AOT paired, arXiv:2406.05882).

    The k-th smallest gap of the policy is to exceed the k-th smallest of the reference. All pairs of the optimiser step
    are sorted together. `of` must be a weighted sum of log π/π_ref.

    Raises:
        InputError: a score that is not linear in log π and log π_ref.
    """

    of: Score = LogRatio()
    couples: ClassVar[str] = "batch"
    ranked: ClassVar[bool] = True
    says = "gaps of the policy and of the reference over the whole step, each sorted: equal ranks are compared"

    def __post_init__(self) -> None:
        if not self.of.linear:
            raise InputError(
                f"sorted_gaps.of is the score '{self.of.name}'",
                "gaps of policy and reference are sorted apart, so the score must be a weighted sum of log π/π_ref",
                "Use log_ratio or shared_length",
            )

    @override
    def implicit(self) -> Score:
        return self.of.implicit()

    def of_pairs(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return the policy's and the reference's gaps, each in ascending order, [E,2]."""
        reference_e2 = -self.of.of_pairs(torch.zeros_like(logp_bt), batch, index_e2)
        policy_e2 = self.of.of_pairs(logp_bt, batch, index_e2) + reference_e2
        gap_e2 = torch.stack([policy_e2[:, 0] - policy_e2[:, 1], reference_e2[:, 0] - reference_e2[:, 1]], 1)
        return gap_e2.sort(0).values

    def code(self) -> str:
        """Return the part as lines of plain torch: the reference's gap is what the score is at log-probs of 0."""
        if not (held := pairs_code(self.of)):
            return ""
        at_zero = re.sub(r"\blogp_bt\b", "zero_bt", held)
        gaps = "score_2e = torch.stack([policy_2e[0] - policy_2e[1], reference_2e[0] - reference_2e[1]])"
        return (
            f"zero_bt = torch.zeros_like(logp_bt)\n{at_zero}\nreference_2e = -score_2e\n"
            f"{held}\npolicy_2e = score_2e + reference_2e\n{gaps}.sort(1).values"
        )

    @override
    def formula(self) -> str:
        gap = "Δs_k = [log π(w) - log π(l)]_(k) - [log π_ref(w) - log π_ref(l)]_(k)"
        return f"{gap}, sorted over the step,  {self.of.formula()}"
