"""Rewards that pay for a number close to the answer; the completion is the number and nothing else.

`correct` is 1 only for the exact number, so evaluation does not depend on the partial credit. An answer of 0 is
close to nothing but itself.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from grouprl.rewards.contract import known_examples

NUMBER = re.compile(r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?%?")
TOLERANCES = tuple(range(50, 100, 5))
"""The thresholds of mean relative accuracy, in per cent."""


def written_number(text: str) -> Fraction | None:
    """Return the exact value of a text that is a number ("1,000", "10%"); None if it is not one."""
    text = text.strip()
    return Fraction(text.rstrip("%").replace(",", "")) if len(text) <= 30 and NUMBER.fullmatch(text) else None


def right_number(answer: object) -> Fraction:
    """Return the exact value of a number in a column, with all its digits.

    Raises:
        ValueError: if it is not a number, or infinite.
    """
    try:
        return Fraction(str(answer).strip().replace(",", ""))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"the column 'answer' is not a number: {str(answer)[:80]!r}") from error


def relative_gap(said: float | Fraction, right: float | Fraction) -> float:
    """Return |said - right| / |right|, which is 0 only for equal numbers; if `right` is 0, it is 0 or infinite."""
    if right == 0:
        return 0.0 if said == 0 else math.inf
    gap = float(abs(Fraction(said) - Fraction(right)) / abs(Fraction(right)))
    return gap or (0.0 if said == right else math.ulp(0.0))


@known_examples(
    ("100", {"answer": 100}, True),
    ("120", {"answer": 100}, False),
    ("", {"answer": 3}, False),
    ("0", {"answer": 0}, True),
)
def fuzzy_count(completion: str, answer: object) -> dict[str, float]:
    """Return accuracy 1.5 - gap while the relative gap is below 0.5, else 0, and 1 for being a number.

    CrowdVLM-R1's fuzzy group relative policy reward (Wang et al. 2025, arXiv 2504.03724).
    """
    said = written_number(completion)
    gap = math.inf if said is None else relative_gap(said, right_number(answer))
    return {"accuracy": 1.5 - gap if gap < 0.5 else 0.0, "format": float(said is not None), "correct": float(gap == 0)}


@known_examples(("95", {"answer": 100}, False), ("1,000", {"answer": 1000}, True), ("x", {"answer": 1000}, False))
def relaxed_accuracy(completion: str, answer: object, tolerance: float = 0.05) -> dict[str, float]:
    """Return 1 for a number within a relative `tolerance` of the answer, and 1 for being a number.

    The usual measure for chart questions, as in BigCharts-R1 (Masry et al. 2025), with its customary 5 per cent.
    """
    said = written_number(completion)
    gap = math.inf if said is None else relative_gap(said, right_number(answer))
    near = gap <= tolerance + 1e-12
    return {"accuracy": float(near), "format": float(said is not None), "correct": float(gap == 0)}


@known_examples(("10", {"answer": 10}, True), ("11", {"answer": 10}, False), ("ten", {"answer": 10}, False))
def mean_relative_accuracy(completion: str, answer: object) -> dict[str, float]:
    """Return the share of ten thresholds 0.50, 0.55, …, 0.95 that 1 - gap reaches, and 1 for being a number.

    Spatial-R1 (Ouyang et al. 2025, arXiv 2504.01805). A gap of exactly 1 - threshold reaches the threshold, despite
    rounding: 12 for 10 earns 0.7.
    """
    said = written_number(completion)
    gap = math.inf if said is None else relative_gap(said, right_number(answer))
    reached = sum(100 * gap <= 100 - tolerance + 1e-9 for tolerance in TOLERANCES) / len(TOLERANCES)
    return {"accuracy": reached, "format": float(said is not None), "correct": float(gap == 0)}


@known_examples(("100", {"answer": 100}, True), ("130", {"answer": 100}, False), ("", {"answer": 100}, False))
def tolerance_ramp(completion: str, answer: object, full: float = 0.05, none: float = 0.2) -> dict[str, float]:
    """Return 1 up to a relative gap of `full`, 0 from `none` on, half a cosine between, and 1 for being a number.

    Reason-RFT's reward of mathematical answers (Tan et al. 2025, arXiv 2503.20752).
    """
    said = written_number(completion)
    gap = math.inf if said is None else relative_gap(said, right_number(answer))
    place = min(max((gap - full) / (none - full), 0.0), 1.0)
    return {
        "accuracy": (math.cos(math.pi * place) + 1) / 2,
        "format": float(said is not None),
        "correct": float(gap == 0),
    }
