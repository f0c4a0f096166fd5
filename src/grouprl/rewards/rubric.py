"""Criteria of a rubric: small rewards to be weighted, and to veto, in a list."""

from __future__ import annotations

from grouprl.rewards.contract import known_examples


@known_examples(("268|8", {}, True), ("|8", {}, False), ("8", {}, False))
def worked(completion: str) -> float:
    """Return 1 iff something stands before the last bar."""
    return float(bool(completion.rpartition("|")[0].strip("|")))


@known_examples(("268|8", {"length": 8}, True), ("2688888|8", {"length": 8}, False), ("", {}, False))
def concise(completion: str, length: int = 8) -> float:
    """Return 1 iff the completion has at most `length` characters, and some."""
    return float(0 < len(completion) <= length)
