"""Numbers of steps in words."""

from __future__ import annotations

from collections.abc import Sequence


def in_ranges(steps: Sequence[int]) -> str:
    """Return the numbers of steps in words: "step 3", "steps 1-5 and 9"."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    said = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"step{'s' * (len(steps) > 1)} {', '.join(said[:-1])}{' and ' if said[1:] else ''}{said[-1]}"
