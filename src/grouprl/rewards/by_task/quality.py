"""Rewards of quality judgements in JSON: a rating, a flaw with its severity, or the better of two."""

from __future__ import annotations

from grouprl.core.json_types import JsonObject
from grouprl.rewards.by_task.structured import read_object
from grouprl.rewards.contract import known_examples

TOLERANCE = 0.35
LARGEST = 1e9
"""The largest size of a valid rating: JSON allows integers that no float can hold."""
CLASS, SEVERITY = 0.25, 0.75


@known_examples(
    ('{"rating":3.5}', {"kind": "rate", "answer": {"rating": 3.5}}, True),
    ('{"rating":2.5}', {"kind": "rate", "answer": {"rating": 3.5}}, False),
    ('{"flaw":"n","severity":2}', {"kind": "flaw", "answer": {"flaw": "n", "severity": 2}}, True),
    ('{"better":"A"}', {"kind": "best", "answer": {"better": "B"}}, False),
    ("A", {"kind": "best", "answer": {"better": "A"}}, False),
)
def quality(completion: str, kind: str, answer: dict[str, object]) -> dict[str, float]:
    """Return Q-Insight's rewards of three tasks, and 1 for a flat JSON object (Li et al. 2025).

    `kind` "rate": 1 within less than 0.35 of the rating. "flaw": 0.25 for the right class and 0.75 more if the severity
    is right, too. "best": 1 for the right one of two.

    Raises:
        ValueError: on another kind.
    """
    if kind not in _TASKS:
        raise ValueError(f"the column 'kind' is {kind!r}, not one of {', '.join(_TASKS)}")
    found = read_object(completion)
    if found is None or any(isinstance(value, dict | list) for value in found.values()):
        return {"format": 0.0, "accuracy": 0.0, "correct": 0.0}
    accuracy = _TASKS[kind](found, answer)
    return {"format": 1.0, "accuracy": accuracy, "correct": float(accuracy == 1)}


def near_rating(found: dict[str, object], answer: JsonObject) -> float:
    """Return 1 iff |rating - right| < 0.35; a difference of exactly 0.35 is not near, despite rounding."""
    said = found.get("rating")
    if not isinstance(said, int | float) or isinstance(said, bool) or not abs(said) < LARGEST:
        return 0.0
    return float(abs(said - answer["rating"]) < TOLERANCE - 1e-9)


def nested(found: dict[str, object], answer: JsonObject) -> float:
    """Return 0.25 for the right class, and 1 for the right class and severity; the severity alone earns nothing."""
    if not _equal(found.get("flaw"), answer["flaw"]):
        return 0.0
    return CLASS + SEVERITY * _equal(found.get("severity"), answer["severity"])


def better(found: dict[str, object], answer: JsonObject) -> float:
    """Return 1 iff the better of the two is named."""
    return float(_equal(found.get("better"), answer["better"]))


def _equal(said: object, right: object) -> bool:
    """Return whether two plain JSON values are equal, true and 1 being different."""
    return bool(said == right) and isinstance(said, bool) == isinstance(right, bool)


_TASKS = {"rate": near_rating, "flaw": nested, "best": better}
