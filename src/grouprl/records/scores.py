"""Verdicts on samples: the reward of each, its components, and why one has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Status = Literal["ok", "not_applicable", "error", "bad_value", "timeout"]
FAILED: tuple[Status, ...] = ("error", "bad_value", "timeout")
By = Literal["reward", "environment", "demonstration"]
"""Who is to blame that a completion has no score, or that there is no demonstration."""

LARGEST = 1e15
"""The size of a reward at most: squares of what is larger, and sums of them, are soon beyond the numbers of float32."""
RULE = f"not a finite number between -{LARGEST:g} and {LARGEST:g}"


@dataclass(frozen=True)
class Problem:
    """Why one sample has no reward."""

    sample_id: str
    status: Status
    what: str
    completion: str
    trace: str = ""
    by: By = "reward"

    def __str__(self) -> str:
        return f"sample {self.sample_id}: {self.what} (completion: {self.completion!r})"


@dataclass(frozen=True)
class Scores:
    """The scores of B samples.

    `reward_b` is float64 [B] and NaN exactly where `status_b` is not "ok"; `components` holds float64 [B] per named
    component, NaN where a sample lacks it; `correct_b` is bool [B], the raw outcome; `status_b` is [B] of `Status`.
    """

    reward_b: NDArray[np.float64]
    components: dict[str, NDArray[np.float64]]
    correct_b: NDArray[np.bool_]
    status_b: NDArray[np.str_]
    problems: list[Problem]
    graded: bool = False
    """Whether the reward is graded and does not say what is right; `correct_b` then means reward >= 1."""
    lost_b: NDArray[np.bool_] | None = None
    """[B] which samples an environment took with it: it hung, ended its process, or failed on its whole prompt; None:
    none."""

    @property
    def ok_b(self) -> NDArray[np.bool_]:
        """Which samples have a reward: bool [B]."""
        return self.status_b == "ok"

    @property
    def gone_b(self) -> NDArray[np.bool_]:
        """`lost_b`, all False where it is None."""
        return np.zeros(len(self.reward_b), dtype=np.bool_) if self.lost_b is None else self.lost_b

    @property
    def failed_b(self) -> NDArray[np.bool_]:
        """On which samples the reward or environment failed, by raising, unusable values or taking too long: [B]."""
        return np.isin(self.status_b, FAILED)
