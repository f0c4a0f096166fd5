"""The error of the predicted times, compared with measurements."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Calibration:
    """Errors of the predicted seconds of `cases`; the shares of peak speed are fitted to the first case alone."""

    machine: str
    cases: tuple[str, ...]
    rollout_error: float
    """Largest |predicted / measured - 1| of a rollout, over the cases that were not used for fitting."""
    update_error: float

    @property
    def words(self) -> str:
        """The errors in one sentence."""
        return (
            f"Measured on a CPU ({self.machine}) with shares fitted on {self.cases[0]}, {' and '.join(self.cases[1:])} "
            f"took up to {self.rollout_error:.0%} more or less than predicted to sample and {self.update_error:.0%} to "
            "train. On accelerators we have measured nothing: the shares there are assumptions, and the likely time is "
            "corrected by what another library has published of its own steps."
        )


@cache
def calibration() -> Calibration:
    """Return the calibration that scripts/calibrate.py recorded."""
    data = json.loads(files(__package__).joinpath("calibration.json").read_text(encoding="utf-8"))
    return Calibration(data["machine"], tuple(data["cases"]), data["rollout_error"], data["update_error"])
