"""Scores that a reward model gives the rows of a rollout as it is trained on them, for stored rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from grouprl.core.batch import Batch
from grouprl.core.outputs import DRAWN_SCORE, HEAD, PREFERENCE, SCORE, parameter, stem
from grouprl.protocols import Trainable
from grouprl.training.measures.step_record import ROW

KEPT = (SCORE, HEAD, PREFERENCE, DRAWN_SCORE)
"""The outputs that are kept: scores of rows, and the vectors by which rows are preferred to each other."""


class ScoreRecord:
    """The scores of each row of a rollout, from the first optimiser step in which the row goes through the model.

    Args:
        rows: the number of rows of the rollout.
        attributes: the names of the scores `score@1` and so on.
    """

    def __init__(self, rows: int, attributes: Sequence[str] = ()) -> None:
        self.rows, self.attributes = rows, attributes
        self.found: dict[str, Tensor] = {}

    def watch(self, outputs: Mapping[str, Tensor], batch: Batch, gap_bt: Tensor | None = None) -> None:
        """Note the scores of those rows of a step that have none so far."""
        for name, value_b in outputs.items():
            if stem(name) in KEPT:
                self._note(name, batch.keys[ROW], value_b.detach())

    def _note(self, name: str, rows: Tensor, value_b: Tensor) -> None:
        kept_b = self.found.setdefault(name, torch.full((self.rows,), torch.nan, dtype=torch.float64))
        new_b = kept_b[rows].isnan()
        kept_b[rows[new_b]] = value_b[new_b].to(kept_b)

    def of(self, part: Batch) -> Self:
        """Return an empty record of some rows of a step."""
        return type(self)(len(part.group_b), self.attributes)

    def take(self, rows: Tensor, seen: Self) -> None:
        """Note the scores that a pass has seen of the rows with these numbers, unless an earlier one has."""
        for name, value_b in seen.found.items():
            self._note(name, rows, value_b)

    def measure(self, policy: Trainable, step: Batch) -> None:
        """Do nothing: scores need no gradient."""

    def score(self) -> Tensor:
        """Return the score of each row, [B]: the only one, or the mean of its attributes; NaN where there is none."""
        for name in (SCORE, DRAWN_SCORE):
            if name in self.found:
                return self.found[name]
        heads = [value_b for name, value_b in self.found.items() if stem(name) == HEAD]
        return torch.stack(heads).mean(0) if heads else torch.full((self.rows,), torch.nan, dtype=torch.float64)

    def named(self) -> Mapping[str, Tensor]:
        """Return the scores of each attribute by its name, and the coordinates of vectors by theirs; [B] each."""
        several = {name: x for name, x in self.found.items() if "@" in name}
        return {self._name(name): several[name] for name in sorted(several, key=parameter)}

    def _name(self, output: str) -> str:
        number = int(parameter(output))
        return self.attributes[number - 1] if stem(output) == HEAD and self.attributes else output
