"""Baselines of single completions: KTO's estimate of the KL, and BCO's running mean."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.algorithms.score.shifted import Shifted
from grouprl.core.batch import Batch
from grouprl.core.batch_rules import check_whole

MISMATCHED = "keys.mismatched"
"""Batch field that is 1 for a completion that stands after a prompt other than its own, else 0."""
RUNNING = "past.score_mean"
"""Batch field with the mean score of all completions of the run so far."""


def mismatched(batch: Batch) -> Tensor:
    """Return [B] bool: completions after a prompt other than their own; none where the field is missing."""
    known_b = batch.keys.get(MISMATCHED.partition(".")[2])
    return torch.zeros_like(batch.group_b, dtype=torch.bool) if known_b is None else known_b > 0


@part("score")
class AboveMismatched(Shifted):
    """s(y) - max(0, mean of s over mismatched completions), without gradient: an estimate of the KL (KTO, eq. 7).

    From arXiv:2402.01306. A mismatched completion stands after the prompt of another; the mean is over all of the
    optimiser step. Without any, or without the field that names them, the baseline is 0.
    """

    of: Score = LogRatio()
    couples: ClassVar[str] = "batch"
    aliases: ClassVar[tuple[str, ...]] = ("kl",)
    reads = (MISMATCHED,)

    def baseline(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return max(0, mean of s over mismatched rows with tokens), the same for every row."""
        there_b = mismatched(batch) & batch.mask_bt.any(1)
        score_b = torch.where(there_b, self.of(logp_bt, batch.replace(loss_mask_bt=None)), 0)
        return (score_b.sum() / there_b.sum().clamp(min=1)).clamp(min=0).expand_as(score_b)

    @override
    def words(self) -> str:
        return f"{self.of.words()}, above its mean over completions of other prompts, if that is above 0"

    @override
    def formula(self) -> str:
        return f"s(y) = u(y) - max(0, mean_mismatched u) (detached),  {self.of.formula().replace('s(y)', 'u(y)')}"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse steps of one prompt, which have no other prompt's completion."""
        lone = ["above_mismatched scores completions after other prompts, but batch.prompts is 1. Use 2 or more"]
        return [*super().refuse(run), *(lone if run.prompts == 1 else [])]

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        lines = self.of.code()
        if not lines or "score_2e" in lines:
            return ""
        whole = lines.replace("active_bt", "mask_bt")  # mismatched rows have left the loss
        return f"""{whole}
far_b = (keys['mismatched'] > 0) & mask_bt.any(1)
far = (torch.where(far_b, score_b, 0).sum() / far_b.sum().clamp(min=1)).clamp(min=0).detach()
{lines}
score_b = score_b - far"""


@part("score")
class AboveRunningMean(Shifted):
    """s(y) - δ, δ the mean score of all completions of the run so far, this step's included (BCO, arXiv:2404.04656).

    Without `past.score_mean` there is no step before: δ is the mean of this step's completions, without gradient.
    """

    of: Score = LogRatio()
    reads = (RUNNING,)

    def baseline(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return δ of each row."""
        known_b = batch.past.get(RUNNING.partition(".")[2])
        if known_b is not None:
            return known_b
        check_whole(batch, "batch", self.name)
        there_b = batch.mask_bt.any(1)
        score_b = torch.where(there_b, self.of(logp_bt, batch), 0)
        return (score_b.sum() / there_b.sum().clamp(min=1)).expand_as(score_b)

    @override
    def words(self) -> str:
        return f"{self.of.words()}, above its mean over all completions so far"

    @override
    def formula(self) -> str:
        return f"s(y) = u(y) - δ,  δ = running mean of u,  {self.of.formula().replace('s(y)', 'u(y)')}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        lines = self.of.code()
        return f"{lines}\nscore_b = score_b - past['score_mean']" if lines and "score_2e" not in lines else ""
