"""Comparing two mathematical answers: words, exact numbers, formulas, and the elements of tuples, sets and lists."""

from __future__ import annotations

import re
from functools import lru_cache

from grouprl.rewards.math.math_text import (
    Several,
    as_words,
    elements_of,
    literal,
    split_units,
    tidy,
    unwrapped,
    whole_gold,
)
from grouprl.rewards.verifier_calls import Apart, Spoiled

MOST_ELEMENTS = 50
EQUATION = re.compile(r"(?<![\\<>!:=])=(?!=)")
GREEK = r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|rho|sigma|tau|omega|angle|overline|triangle)\s*"
NAME = re.compile(rf"(?:{GREEK}|[a-zA-Z]){{1,4}}(?:_\{{?\w+\}}?)?'?(?:\([^()=]*\))?|[|]?[A-Z]{{2}}[|]?")

_readable = Apart("grouprl.rewards.math.math_symbols:readable", True)
_equal = Apart("grouprl.rewards.math.math_symbols:equal", True)


@lru_cache(maxsize=4096)
def read_gold(answer: str) -> str:
    """Return the gold of a column in the form that answers are compared with.

    Raises:
        ValueError: if it cannot be read as a whole.
    """
    whole = whole_gold(answer)
    text = tidy(whole)
    if not text or "$" in whole.strip("$").replace("\\$", ""):
        raise ValueError(f"the column 'answer' holds no expression that can be parsed: {answer[:200]!r}")
    for leaf in _leaves(text):
        bare, _ = split_units(leaf)
        plain = as_words(leaf) is not None or literal(bare) is not None
        if not plain and _readable(bare) is not True:
            raise ValueError(f"the column 'answer' holds no expression that can be parsed whole: {answer[:200]!r}")
    return text


def _leaves(text: str) -> list[str]:
    if "\\cup" in text:
        return [leaf for part in text.split("\\cup") for leaf in _leaves(part.strip())]
    if as_words(text) is not None:
        return [text]
    several = elements_of(text)
    if several is None:
        return [text]
    return [leaf for element in several.elements for leaf in _leaves(element)]


def same_answer(gold: str, said: str, evaluated: bool = True) -> bool:
    """Return whether an answer equals the gold; both are texts returned by `tidy`."""
    if gold.replace(" ", "") == said.replace(" ", ""):
        return True
    if (words := as_words(gold)) is not None:
        return as_words(said) == words
    if "\\cup" in gold or "\\cup" in said:
        return _same_elements(gold.split("\\cup"), said.split("\\cup"), evaluated, ordered=False)
    theirs, ours = elements_of(_value_of(gold)), elements_of(_value_of(said))
    if theirs is None and ours is None:
        return _same_leaf(gold, said, evaluated)
    return theirs is not None and ours is not None and _same_several(theirs, ours, evaluated)


def _value_of(text: str) -> str:
    """Return the text after "name =", or the whole text without it."""
    left, found, right = text.partition("=")
    return right.strip() if found and NAME.fullmatch(left.strip()) and "=" not in right else text


def _same_several(theirs: Several, ours: Several, evaluated: bool) -> bool:
    if (theirs.ordered or ours.ordered) and (theirs.left, theirs.right) != (ours.left, ours.right):
        return False
    return _same_elements(theirs.elements, ours.elements, evaluated, ordered=theirs.ordered)


def _same_elements(
    theirs: tuple[str, ...] | list[str], ours: tuple[str, ...] | list[str], evaluated: bool, *, ordered: bool
) -> bool:
    """Return whether two sequences have the same elements, in the same order if `ordered`, else in any order."""
    if len(theirs) != len(ours) or len(theirs) > MOST_ELEMENTS:
        return False
    if ordered:
        return all(same_answer(a.strip(), b.strip(), evaluated) for a, b in zip(theirs, ours, strict=True))
    left = [element.strip() for element in ours]
    for wanted in theirs:
        found = next((i for i, element in enumerate(left) if same_answer(wanted.strip(), element, evaluated)), None)
        if found is None:
            return False
        del left[found]
    return True


def _same_leaf(gold: str, said: str, evaluated: bool) -> bool:
    if EQUATION.search(said) and not EQUATION.search(gold):
        return _same_chain(gold, EQUATION.split(said), evaluated)
    gold_value = _value_of(gold)
    if gold_value != gold:
        said_value = _value_of(said)
        if said_value != said or not EQUATION.search(said):
            return same_answer(gold_value, said_value, evaluated)
    (theirs, unit), (ours, other) = split_units(gold), split_units(said)
    if unit and other and unit.rstrip("s") != other.rstrip("s"):
        return False
    theirs, ours = unwrapped(theirs), unwrapped(ours)
    wanted, found = literal(theirs), literal(ours)
    if wanted is not None and (found is not None or evaluated):
        return found == wanted
    if theirs.replace(" ", "") == ours.replace(" ", ""):
        return True
    return symbolically_equal(theirs, ours, evaluated)


def _same_chain(gold: str, parts: list[str], evaluated: bool) -> bool:
    """Return whether a chain "a = b = c" ends in the gold, and each part before is a name or has the same value."""
    *before, last = [part.strip() for part in parts]
    if len(before) > 5 or not last or not same_answer(gold, last, evaluated):
        return False
    return all(NAME.fullmatch(part) or (part and same_answer(gold, part, False)) for part in before)


def symbolically_equal(gold: str, said: str, evaluated: bool) -> bool:
    """Return whether sympy finds two formulas equal within its time and memory; False if it exceeds them."""
    found = _equal(gold, said, evaluated)
    return False if isinstance(found, Spoiled) else bool(found)
