"""How far the arithmetic was off where it has been measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Calibration:
    """Measured against predicted seconds of `cases`, with the shares fitted on the first of them alone."""

    machine: str
    cases: tuple[str, ...]
    rollout_error: float
    """Largest |predicted / measured - 1| of a rollout, over the cases that were not fitted on."""
    update_error: float

    @property
    def words(self) -> str:
        """One sentence."""
        return (
            f"Measured on a CPU ({self.machine}) with shares fitted on {self.cases[0]}, {' and '.join(self.cases[1:])} "
            f"took up to {self.rollout_error:.0%} more or less than predicted to sample and {self.update_error:.0%} to "
            "train. On accelerators nothing has been measured yet: the shares there are assumptions."
        )


@cache
def calibration() -> Calibration:
    """Return what scripts/calibrate.py has recorded."""
    data = json.loads(files(__package__).joinpath("calibration.json").read_text(encoding="utf-8"))
    return Calibration(data["machine"], tuple(data["cases"]), data["rollout_error"], data["update_error"])
