"""Scores above a baseline, so that a completion alone can be judged."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.score.score import Score
from grouprl.core.batch import Batch


class Shifted(Score):
    """Base: a score less a detached baseline."""

    aliases: ClassVar[tuple[str, ...]] = ()
    """Further names under which the baseline is a metric, such as TRL's."""

    of: Score

    def baseline(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return the baseline of each row, [B], without gradient."""
        raise NotImplementedError

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return s(y) less the baseline."""
        return self.of(logp_bt, batch) - self.baseline(logp_bt.detach(), batch)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse what the score within refuses."""
        return self.of.refuse(run)
