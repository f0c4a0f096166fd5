"""The outcome of a run in one sentence: a comparison of held-out numbers before and after training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grouprl.core.json_types import JsonMapping

MEASURES = (("eval/pass@1", "sampled pass@1"), ("eval/greedy", "greedy pass@1"), ("eval/reward", "mean reward"))
"""Measures for a verdict, of which the first evaluated one counts; with graded rewards, the mean reward is first."""


@dataclass(frozen=True)
class Verdict:
    """The kind of a verdict, and a sentence that states it with its numbers."""

    kind: Literal["learned", "worse", "unclear", "unfinished"]
    words: str


def verdict(before: JsonMapping, after: JsonMapping, steps: int | None = None) -> Verdict:
    """Compare the first and the last evaluation of a run, both on held-out prompts with 95 % intervals.

    `steps` is the number of training steps between them, if known.
    A run learned (or got worse) if the intervals do not overlap, which is stricter than a test of the difference.
    """
    if not before or not after:
        return Verdict("unfinished", "Not finished: there is no evaluation after training yet.")
    if steps == 0:
        return Verdict("unfinished", "Nothing was trained: the run has no steps.")
    measures = MEASURES[::-1] if after.get("eval/graded") else MEASURES
    found = [(name, label) for name, label in measures if all(_ends(record, name) for record in (before, after))]
    if not found:
        return Verdict("unfinished", "The evaluations before and after have no measure with intervals in common.")
    name, label = found[0]
    old, new = before[name], after[name]
    (low, high), (new_low, new_high) = _ends(before, name), _ends(after, name)
    numbers = f"held-out {label} {old:.2f} → {new:.2f}, 95 % interval [{low:.2f}, {high:.2f}] → "
    numbers += f"[{new_low:.2f}, {new_high:.2f}]"
    if new_low > high:
        return Verdict("learned", f"Learned: {numbers}.")
    if new_high < low:
        return Verdict("worse", f"Got worse: {numbers}.")
    return Verdict("unclear", f"No gain shown: {numbers}; the intervals overlap.")


def _ends(record: JsonMapping, name: str) -> tuple[float, ...]:
    """Return the interval of a measure; empty if the record lacks the measure or one of its bounds."""
    values = [record.get(f"{name}{end}") for end in ("", "_low", "_high")]
    whole = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    return tuple(float(value) for value in values[1:] if value is not None) if whole else ()
