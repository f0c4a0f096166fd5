"""The rows that a judge was asked about again, and how far its scores of them have moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

Moves: TypeAlias = dict[tuple[str, int], float]
"""By prompt and sample: |last score - first score|."""


def judge_moves(folder: Path) -> tuple[int, Moves]:
    """Return the step whose rows a run's judge was asked about again, and how far their scores have moved by the last
    time; (-1, {}) where it was not asked.
    """
    try:
        found = json.loads((folder / "judge_probe.json").read_bytes())
        first, last = found["asked"][str(found["step"])], found["asked"][max(found["asked"], key=int)]
        rows = zip(found["rows"], first, last, strict=True)
        known = [(row["prompt_id"], row["sample"], x, y) for row, x, y in rows if x is not None and y is not None]
        return int(found["step"]), {(prompt, sample): abs(y - x) for prompt, sample, x, y in known}
    except (OSError, ValueError, TypeError, KeyError):
        return -1, {}
