"""What a part finds of a run: its memory, its luck, its notes and the clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class PartContext:
    """Memory, luck and notes of a run."""

    seed: int = 3
    store: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)

    def state_of(self, part: object) -> dict[str, Any]:
        return self.store

    def rng(self, part: object) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def note(self, name: str, value: float, together: str = "mean") -> None:
        self.notes[name] = value


@dataclass
class ClockedContext(PartContext):
    """A context whose luck follows the step."""

    step: int = 0
    steps: int = 100

    def rng(self, part: object) -> np.random.Generator:
        return np.random.default_rng(self.step)
