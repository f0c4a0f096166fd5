"""Signs around a number that make it a part of something else: an operand, a bound, a range, a compound.

"10 - 5" states neither 10 nor 5, "more than 5" and "5 or 7" state no number, and "5 ft 7 in" is not 7.
"""

from __future__ import annotations

import re

from grouprl.rewards.math.math_units import UNITS

SEEN = 60
"""Number of characters before and after a number that are looked at."""
COUNT = r"(?:\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|hundred))"
BEFORE = tuple(
    re.compile(rf"(?:{pattern})[ \t$({{]*\Z", re.IGNORECASE)
    for pattern in (
        # 10 - 5, 3 cm * 4, 10**3, 5 ± 1, 5..7
        r"\d\)?[ \t]?[a-z%\u00b0]{0,3}[ \t]*"
        r"(?:[-+/^\u00b1~\u00d7\u00b7\u22c5\u00f7]|\*\*?|\.\.+|\bx|\\(?:times|cdot|div|pm)\b)",
        r"[^\W\d_][-+/^\u00d7\u00b7\u22c5\u00f7]",  # x-5, page-5
        r"\^\{?-",
        r"(?:\u00b1|\+/-|\+-|\\pm)",
        r"(?:[<\u2264\u2265\u2a7d\u2a7e]=?|\\(?:leq?|geq?|lt|gt)(?:slant)?)",
        r"[^\s<>=-][ \t]*>=?",
        r"\b(?:less|more|greater|fewer|smaller|larger|lower|higher|bigger) than(?: or equal to)?",
        r"\d[ \t]?[a-z%$]{0,3} (?:to|or|minus|plus)",
        r"\bbetween [^\n]{0,30}\d[^\n]{0,12} and",
        rf"{COUNT} times|\b(?:multiplied by|divided by|mod|modulo|choose|out of)|\(mod",
        r"(?:%|\b(?:percent|square|cube|root|reciprocal|inverse|negative|opposite|factorial|logarithm)) of(?: the)?",
        r"\b(?:square|cube) root",
        r"\}[ \t]*(?=\{)",  # a second argument: \frac{x}{5}
    )
)
"""Beginnings of which a number is a part, up to the number."""
ATTACHED = re.compile(r"[a-z]\([^()\n]*\Z", re.IGNORECASE)
"""The beginning of a call: f(5)."""
SIGNED_OPERAND = re.compile(r"\d[ \t]\Z")
GROUPED = re.compile(r"(?<![\w.,])\d{1,3}(?:[ '\u2019]\d{3})*[ '\u2019]\Z")
"""The beginning of a number with a sign between its thousands that stands between numbers, too: 1 005."""
TAG = re.compile(r"<[^<>\n]*>[ \t]*\Z")
BEHIND = re.compile(
    r"(?i:[ -]?(?:squared|cubed|factorial|pi)\b|[^.\n]{0,9} (?:is|was|are) [^.\n]{0,30}\b(?:wrong|incorrect|false)\b"
    r"|,? (?:is|was) (?:not|never)\b|,? (?:isn|wasn)['\u2019]t\b)"
)
UNIT_BEFORE = re.compile(r"\d ?([^\W\d_]+),? (?:and )?\Z")
UNIT_BEHIND = re.compile(r"[ -]?([^\W\d_]+)")


def part_of_more(text: str, start: int, end: int) -> bool:
    """Return whether the number `text[start:end]` is a part of something else."""
    before, number, behind = text[max(0, start - SEEN) : start], text[start:end], text[end : end + SEEN]
    if BEHIND.match(behind) or ATTACHED.search(before) or _compound(before, behind):
        return True
    if number[0] in "+-" and (SIGNED_OPERAND.search(before) or (before.endswith("|") and behind.startswith("|"))):
        return True  # 10 -5, |-5|
    if GROUPED.search(before) and re.match(r"\d{3}(?!\d)", number):
        return True
    return not TAG.search(before) and any(pattern.search(before) for pattern in BEFORE)


def _compound(before: str, behind: str) -> bool:
    """Return whether a number with a unit stands before a number with another unit: 5 ft 7 in."""
    first, second = UNIT_BEFORE.search(before), UNIT_BEHIND.match(behind)
    names = [_unit(found[1]) for found in (first, second) if found]
    return len(names) == 2 and None not in names and names[0] != names[1]


def _unit(word: str) -> str | None:
    word = word.casefold()
    return UNITS.get(word) or UNITS.get(word.removesuffix("s"))
