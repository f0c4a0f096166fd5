"""Answers that give unknowns their values: "x = 1, y = 2", "(x, y) = (1, 2)"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from grouprl.rewards.math.math_text import elements_of

GREEK = r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|rho|sigma|tau|omega|angle|overline|triangle)\s*"
NAME = re.compile(rf"(?:{GREEK}|[a-zA-Z]){{1,4}}(?:_\{{?\w+\}}?)?'?(?:\([^()=]*\))?|[|]?[A-Z]{{2}}[|]?")
NAMES = re.compile(r"\(\s*[a-zA-Z](?:_\{?\w\}?)?(?:\s*,\s*[a-zA-Z](?:_\{?\w\}?)?){1,5}\s*\)")
"""A point or tuple of unknowns: (x, y)."""


def values_of(text: str) -> dict[str, str]:
    """Return the values of two or more unknowns by name, "x=1, y=2" or "(x, y) = (1, 2)"; empty for another answer.

    Roots x_1 and x_2 are those of one unknown: they have no order, and are not unknowns apart.
    """
    left, sign, right = text.partition("=")
    if sign and NAMES.fullmatch(left.strip()):
        found = elements_of(right.strip())
        values = found.elements if found and found.left == "(" else ()
        return _by_name([name.strip() for name in left.strip()[1:-1].split(",")], values)
    several = elements_of(text)
    parts = [each.partition("=") for each in several.elements] if several else []
    return _by_name([name.strip() for name, _, _ in parts], [value.strip() for _, _, value in parts])


def _by_name(names: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    if not len(values) == len(names) == len(set(names)) or not all(values) or not all(map(NAME.fullmatch, names)):
        return {}
    unknowns = {name.partition("_")[0] for name in names}
    return dict(zip(names, values, strict=True)) if len(unknowns) > 1 else {}
