"""Completions judged against one of their own group (BRPO)."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.preferences import MEASURE, VERDICTS, By, needs, verdicts
from grouprl.core.batch import Batch


@part("advantage")
class AgainstOne(Advantage):
    """+1 for a completion that beats its group's measure, -1 for one that does not, 0 for the measure (BRPO,
    arXiv:2506.00103): no mean, no spread.

    The measure is a completion of the group chosen at random (`measure`). A preference of ½ is not a win.
    """

    by: By = "judge"
    equation = "A_i = +1 if y_i ≻ y_m else -1;  A_m = 0"

    def __call__(self, batch: Batch) -> Tensor:
        """Return ±1, and 0 for the measure."""
        return batch.broadcast(verdicts(batch, self.by, self.name)[0])

    @override
    def needs(self) -> tuple[str, ...]:
        return (*needs(self.by), f"keys.{MEASURE}")

    @override
    def words(self) -> str:
        better = "that a judge prefers" if self.by == "judge" else "of larger reward"
        return f"1 for a completion {better} to a randomly chosen one of its group, else -1"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return "" if self.by == "judge" else f"{VERDICTS}\nadv_bt = sign_b[:, None] * mask_bt"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion."""
        return [f"{self.name} compares completions. Use batch.group_size of 2 or more"] * (run.group_size == 1)
