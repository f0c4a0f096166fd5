"""Criteria of a rubric: small rewards that are weighted in a list, or veto it."""

from __future__ import annotations

from grouprl.rewards.contract import known_examples


@known_examples(("268|8", {}, True), ("|8", {}, False), ("8", {}, False))
def worked(completion: str) -> float:
    """Return 1 iff there is some text before the last bar."""
    return float(bool(completion.rpartition("|")[0].strip("|")))


@known_examples(("268|8", {"length": 8}, True), ("2688888|8", {"length": 8}, False), ("", {}, False))
def concise(completion: str, length: int = 8) -> float:
    """Return 1 iff the completion has from 1 to `length` characters."""
    return float(0 < len(completion) <= length)
