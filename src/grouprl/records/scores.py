"""Scores of samples: rewards, their components, and the reasons why some samples have none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Status = Literal["ok", "not_applicable", "error", "bad_value", "timeout", "too_long"]
FAILED: tuple[Status, ...] = ("error", "bad_value", "timeout")
By = Literal["reward", "environment", "demonstration"]
"""The cause of a missing score or demonstration."""

LARGEST = 1e15
"""Largest magnitude of a reward: squares of larger numbers, and sums of squares, soon overflow float32."""
RULE = f"not a finite number between -{LARGEST:g} and {LARGEST:g}"


@dataclass(frozen=True)
class Problem:
    """The reason why one sample has no reward."""

    sample_id: str
    status: Status
    what: str
    completion: str
    trace: str = ""
    by: By = "reward"

    def __str__(self) -> str:
        shown = f" (completion: {self.completion!r})" if self.completion or self.by != "environment" else ""
        return f"sample {self.sample_id}: {self.what}{shown}"


@dataclass(frozen=True)
class Scores:
    """The scores of B samples.

    `reward_b` is float64 [B] and is NaN exactly where `status_b` is not "ok"; `components` holds float64 [B] per named
    component, NaN where a sample lacks it; `correct_b` is bool [B], the raw outcome; `status_b` is [B] of `Status`.
    """

    reward_b: NDArray[np.float64]
    components: dict[str, NDArray[np.float64]]
    correct_b: NDArray[np.bool_]
    status_b: NDArray[np.str_]
    problems: list[Problem]
    graded: bool = False
    """Whether the reward is graded and has no notion of a right answer; `correct_b` then means reward >= 1."""
    lost_b: NDArray[np.bool_] | None = None
    """[B] True for samples lost to their environment, which hung, ended its process, or failed on every episode of the
    prompt; None: none were lost.
    """

    @property
    def ok_b(self) -> NDArray[np.bool_]:
        """[B] bool: True for samples that have a reward."""
        return self.status_b == "ok"

    @property
    def gone_b(self) -> NDArray[np.bool_]:
        """[B] bool: `lost_b`, or all False if that is None."""
        return np.zeros(len(self.reward_b), dtype=np.bool_) if self.lost_b is None else self.lost_b

    @property
    def failed_b(self) -> NDArray[np.bool_]:
        """[B] bool: True for samples on which the reward or environment raised, returned unusable values, or took too
        long.
        """
        return np.isin(self.status_b, FAILED)
