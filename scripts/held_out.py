"""The held-out numbers of a recorded run, and whether a measure rose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grouprl.evaluation.gain import recorded_gain

ENDS = ("", "_low", "_high", "_gain", "_gain_low", "_gain_high")


def figures(line: Mapping[str, Any], measures: Sequence[str], digits: int | None = None) -> dict[str, float]:
    """Return the measures of a line of metrics.jsonl with their intervals, and their gains where it states them."""
    kinds = [f"{measure}{end}" for measure in measures for end in ENDS]
    found = {kind: line[f"eval/{kind}"] for kind in [*kinds, "prompts"] if f"eval/{kind}" in line}
    return found if digits is None else {kind: round(value, digits) for kind, value in found.items()}


def rose(record: Mapping[str, Any], measure: str) -> bool:
    """Whether the interval of the gain lies above 0; False where a record lacks the measure."""
    gain = recorded_gain(record["before"], record["after"], measure)
    return gain is not None and gain.low > 0
