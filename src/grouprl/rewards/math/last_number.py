"""The last number that a text states, told apart from digits that belong to something else."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from grouprl.rewards.math.around import part_of_more
from grouprl.rewards.math.math_text import MINUS, UNSEEN, negated

READ = 20_000
"""Number of characters at the end of a text that are searched for its last number."""
MOST_DIGITS, MOST_POWER = 600, 4
PART = "_"
"""A mark next to digits that are part of something else."""
# A sign counts as part of a number only where it cannot be a minus between two operands.
NUMBER = re.compile(
    r"(?<![\w^_])(?<![\w)]\.)(?<!\d[:,/-])"
    r"(?P<number>(?:(?<![\w).])[-+])?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+))"
    r"(?P<power>[eE][-+]?[0-9]+)?(?:/(?P<below>[0-9]+))?"
    r"(?![0-9_^/]|[-.,:][0-9]|[^\W\d_]{1,9}[0-9]|[ij](?!\w))"
)
WHOLE = re.compile(r"(?<![\w.,/^])(?P<sign>(?<![\w)])[-+])?(?P<whole>[0-9]{1,9}) \Z")
"""The whole part of a mixed number, before its fraction: the 1 of "1 3/4"."""
MARKS = (
    (re.compile(r"(?<!\w)(_{1,2})(?=[-+]?[\d.])([^\s_]+)\1(?!\w)"), r"\2"),
    (re.compile(r"(?<![\w)\]}$])-[ \t]?(?:\\?\$|[\u20ac\u00a3\u00a5])[ \t]?(?=[\d.])"), "-"),
    (re.compile(r"(?<![\w)\]} ])-\(([\d.,]+)\)"), r"-\1"),
    (re.compile(r"(?<=[={:]) ?- (?=[\d.])"), " -"),
)
"""Emphasis by underscores, and signs that stand apart from their numbers."""
LATEX = (
    (re.compile(r"(?<=[0-9])(?:\{,\}|\\,)(?=[0-9]{3}(?![0-9]))"), ","),
    (re.compile(r" ?\^ ?(?:\{ ?\\circ ?\}|\\circ(?![a-zA-Z]))"), " degrees"),
    (re.compile(r"\\[dt]?frac([0-9])([0-9])"), r"\1/\2"),
    (re.compile(r"\\[dt]?frac\{([-+]?[0-9]{1,600})\}\{([0-9]{1,600})\}"), r"\1/\2"),
    (re.compile(r"\\[dt]?frac|\\sqrt(?:\[[^\[\]]{0,9}\])? ?\{?"), PART),
    (re.compile(r"[_^] ?\{"), "^"),
    (re.compile(r" ?\\(?:pi|infty|sqrt)(?![a-zA-Z])"), PART),
    (re.compile(r"(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))"), ","),
)
FUNCTION = re.compile(r"\\?\b(?:log|ln|exp|sin|cos|tan|sec|csc|cot|sqrt) ?\(? ?\Z")
"""The name of a function directly before a number, which still has to be computed."""
SCALES = {
    "dozen": 12,
    "hundred": 10**2,
    "thousand": 10**3,
    "lakh": 10**5,
    "million": 10**6,
    "mln": 10**6,
    "crore": 10**7,
    "billion": 10**9,
    "trillion": 10**12,
}
SHORT_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "bn": 10**9, "B": 10**9, "tn": 10**12}
SHORT_SCALE = re.compile(rf"(?P<scale>{'|'.join(SHORT_SCALES)})(?![\w^])")
"""A letter that scales the number right before it: "395k"."""
NEGATIVE = re.compile(r"\b(?:minus|negative) ?\Z", re.IGNORECASE)
SCALE = re.compile(rf"[ -]?(?P<scale>{'|'.join(SCALES)})(?:s?\b|(?P<part>ths?\b))", re.IGNORECASE)
"""A word that scales the number before it: "2.5 million"."""
SIGNS = {
    **MINUS,
    **UNSEEN,
    **dict.fromkeys(map(ord, "\u2044\u2215"), "/"),
    **dict.fromkeys(map(ord, "\u221a\u03c0\u221e"), PART),
}


@dataclass(frozen=True)
class Stated:
    """A number in a text, and whether it is fully computed."""

    written: str
    value: Fraction
    finished: bool
    """Whether nothing is left to compute: 790/2 and 6/8 are not finished, 3/4 is."""


def last_number(text: str) -> Stated | None:
    """Return the exact last number of a text; None if there is none, or it is absurdly long.

    Thousands separators, fractions (3/4, 1 3/4, LaTeX's), powers of ten (1e3), their names (2 million, 2k) and "minus"
    are read. Digits inside something else are not a number (12:02, 2024-01-05, 0x2, 2^3, week2, x_2, a root, log 5,
    digits next to superscripts or digits of other scripts), and neither is a negated number ("not 5"), nor one of which
    a part or a multiple is meant ("half of 5"). A text whose last number is an operand, a bound or a part of a range
    states none (`grouprl.rewards.math.around`).
    """
    text = _plain(text[-READ:])
    found = list(NUMBER.finditer(text))
    last = next((each for each in reversed(found) if not negated(text, each.start())), None)
    if last is None or len(last[0]) > MOST_DIGITS or len(last["power"] or "") > MOST_POWER:
        return None
    times = _scale(text, last.end())
    function = FUNCTION.search(text[max(0, last.start() - 9) : last.start()])
    if times is None or function or part_of_more(text, last.start(), last.end()):
        return None
    times = -times if NEGATIVE.search(text[max(0, last.start() - 10) : last.start()]) else times
    number = Fraction(last["number"].replace(",", "") + (last["power"] or ""))
    if last["below"] is None:
        return Stated(last[0], times * number, True)
    below = int(last["below"])
    if below == 0:
        return None
    finished = last["number"].lstrip("+-").isdigit() and below > 1 and math.gcd(int(number), below) == 1
    whole = WHOLE.search(text[max(0, last.start() - 12) : last.start()])
    if whole and last["number"].isdigit() and number < below:
        mixed = times * (int(whole["whole"]) + number / below)
        return Stated(whole[0] + last[0], -mixed if whole["sign"] == "-" else mixed, finished)
    return Stated(last[0], times * number / below, finished)


def _scale(text: str, place: int) -> int | None:
    """Return what the words or the letter at `place` multiply by; None for a part ("395 thousandths")."""
    times = 1
    while scale := SCALE.match(text, place):
        if scale["part"]:
            return None
        times, place = times * SCALES[scale["scale"].lower()], scale.end()
    short = SHORT_SCALE.match(text, place) if times == 1 else None
    return SHORT_SCALES[short["scale"]] if short else times


def _plain(text: str) -> str:
    """Return a text with ASCII signs, and with marks at digits that are part of something else."""
    text = text.translate(SIGNS)
    if not text.isascii():
        text = "".join(PART if sign > "\x7f" and sign.isnumeric() else sign for sign in text)
    for pattern, instead in (*MARKS, *LATEX):
        text = pattern.sub(instead, text)
    return text
