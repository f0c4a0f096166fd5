"""Comparing two mathematical answers: words, exact numbers, formulas, and the elements of tuples, sets and lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from grouprl.rewards.math.math_text import (
    INTERVAL,
    OR,
    TEXT,
    Several,
    as_interval,
    as_words,
    elements_of,
    literal,
    numeral,
    signs_apart,
    tidy,
    unwrapped,
    whole_gold,
)
from grouprl.rewards.math.math_units import Quantity, quantity
from grouprl.rewards.math.math_unknowns import NAME, NAMES, values_of
from grouprl.rewards.verifier_calls import Apart, Spoiled

MOST_ELEMENTS = 50
EQUATION = re.compile(r"(?<![\\<>!:=])=(?!=)")
EMPTY_SET = r"\emptyset"
MEMBER = re.compile(r"\s*([a-zA-Z](?:_\{?\w\}?)?)\s*\\in(?![a-zA-Z])\s*")
"""The beginning of "x ∈ …"."""

Equal = Callable[[str, str, bool], bool]
"""Function (gold, said, evaluated) that compares two formulas."""

_readable = Apart("grouprl.rewards.math.math_symbols:readable", True)
_compared = Apart("grouprl.rewards.math.math_symbols:compared", True)
_formed = Apart("grouprl.rewards.math.math_symbols:formed", True)


class NeedsSympy(Exception):
    """A comparison needs formulas to be compared, which this process does not do."""


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
        bare = quantity(_value_of(leaf)).value
        plain = as_words(leaf) is not None or literal(bare) is not None or numeral(bare) or bare == EMPTY_SET
        if not plain and _readable(bare) is not True:
            raise ValueError(f"the column 'answer' holds no expression that can be parsed whole: {answer[:200]!r}")
    return text


def _leaves(text: str) -> list[str]:
    if "\\cup" in text:
        return [leaf for part in text.split("\\cup") for leaf in _leaves(part.strip())]
    if as_words(text) is not None:
        return [text]
    several = _several(text)
    if several is None:
        return [text]
    return [leaf for element in several.elements for leaf in _leaves(element)]


def same_answer(gold: str, said: str, evaluated: bool = True) -> bool:
    """Return whether an answer equals the gold; both are texts returned by `tidy`.

    If formulas have to be compared, the whole comparison takes place in a separate process, so that all the formulas of
    an answer share one limit of time and memory; an answer that exceeds it is wrong.
    """
    try:
        return same(gold, said, evaluated, _elsewhere)
    except NeedsSympy:
        found = _compared(gold, said, evaluated)
        return False if isinstance(found, Spoiled) else bool(found)


def has_form(said: str, gold: str, form: str) -> bool:
    """Return whether a formula is written in a form (`math_symbols.formed`); a number always is."""
    if literal(quantity(_value_of(said)).value) is not None or as_words(said) is not None:
        return True
    found = _formed(_value_of(said), _value_of(gold), form)
    return False if isinstance(found, Spoiled) else bool(found)


def is_formula(gold: str) -> bool:
    """Return whether a gold holds unknowns, so that its equal forms have no end: 4x does, 5 and yes do not."""
    if as_words(gold) is not None or numeral(_value_of(gold)):
        return False
    bare = re.sub(r"\\[a-zA-Z]+|[ei](?![a-zA-Z])", "", TEXT.sub("", quantity(_value_of(gold)).value))
    return re.search("[a-zA-Z]", bare) is not None


def _elsewhere(gold: str, said: str, evaluated: bool) -> bool:
    raise NeedsSympy


def same(gold: str, said: str, evaluated: bool, equal: Equal) -> bool:
    """Return whether an answer equals the gold; `equal` compares formulas."""
    if gold.replace(" ", "") == said.replace(" ", ""):
        return True
    if (words := as_words(gold)) is not None:
        return as_words(said) == words
    gold, said = _as_intervals(gold, said), _as_intervals(said, gold)
    if "\\cup" in gold or "\\cup" in said:
        return _same_elements(gold.split("\\cup"), said.split("\\cup"), evaluated, equal, ordered=False)
    named, unknowns = values_of(gold), values_of(said)
    if named or unknowns:
        return _same_values(gold, said, named, unknowns, evaluated, equal)
    theirs, ours = _several(_value_of(gold)), _several(_value_of(said))
    if theirs is None and ours is None:
        return _same_leaf(gold, said, evaluated, equal)
    return theirs is not None and ours is not None and _same_several(theirs, ours, evaluated, equal)


def _same_values(
    gold: str, said: str, named: dict[str, str], unknowns: dict[str, str], evaluated: bool, equal: Equal
) -> bool:
    """Return whether each unknown has its value; without names, the values stand in the order of the names."""
    if named and unknowns:
        return named.keys() == unknowns.keys() and all(
            same(named[name], unknowns[name], evaluated, equal) for name in named
        )
    several = elements_of(said if named else gold)
    allowed = ("(",) if gold.startswith("(") else ("", "(")
    if several is None or several.left not in allowed:
        return False
    values = tuple(named.values()) if named else tuple(unknowns[name] for name in sorted(unknowns))
    theirs, ours = (values, several.elements) if named else (several.elements, values)
    return _same_elements(theirs, ours, evaluated, equal, ordered=bool(named) or several.ordered)


def _as_intervals(text: str, other: str) -> str:
    """Return inequalities as intervals if the other answer is made of intervals, else the text as it is."""
    if not INTERVAL.fullmatch(_value_of(other).split("\\cup")[0].strip()):
        return text
    found = [as_interval(part) for part in OR.split(text)]
    return "\\cup".join(filter(None, found)) if all(found) else text


def _several(text: str) -> Several | None:
    r"""Return the elements of an answer, with the two values of each `\pm` apart; None for a single value."""
    found = elements_of(text)
    if found is None:
        values = signs_apart(text)
        return Several("", "", values) if len(values) == 2 else None
    if found.ordered:
        return found
    return Several(found.left, found.right, tuple(value for each in found.elements for value in signs_apart(each)))


def _value_of(text: str) -> str:
    """Return the text after "name =", "(x, y) =" or "x \\in", or the whole text without it."""
    if found := MEMBER.match(text):
        return text[found.end() :].strip()
    left, sign, right = text.partition("=")
    named = sign and (NAME.fullmatch(left.strip()) or NAMES.fullmatch(left.strip()))
    return right.strip() if named and "=" not in right else text


def _same_several(theirs: Several, ours: Several, evaluated: bool, equal: Equal) -> bool:
    if (theirs.ordered or ours.ordered) and (theirs.left, theirs.right) != (ours.left, ours.right):
        return False
    return _same_elements(theirs.elements, ours.elements, evaluated, equal, ordered=theirs.ordered)


def _same_elements(theirs: Sequence[str], ours: Sequence[str], evaluated: bool, equal: Equal, *, ordered: bool) -> bool:
    """Return whether two sequences have the same elements, in the same order if `ordered`, else in any order."""
    if len(theirs) != len(ours) or len(theirs) > MOST_ELEMENTS:
        return False
    if ordered:
        return all(same(a.strip(), b.strip(), evaluated, equal) for a, b in zip(theirs, ours, strict=True))
    # One by one: equality of formulas is no key to sort or to look up by, and an element may occur twice.
    left = [element.strip() for element in ours]
    for wanted in theirs:
        found = next((i for i, element in enumerate(left) if same(wanted.strip(), element, evaluated, equal)), None)
        if found is None:
            return False
        del left[found]
    return True


def _same_leaf(gold: str, said: str, evaluated: bool, equal: Equal) -> bool:
    if EQUATION.search(said) and not EQUATION.search(gold):
        return _same_chain(gold, EQUATION.split(said), evaluated, equal)
    gold_value = _value_of(gold)
    if gold_value != gold:
        said_value = _value_of(said)
        if said_value != said or not EQUATION.search(said):
            return same(gold_value, said_value, evaluated, equal)
    return _same_quantity(quantity(gold), quantity(said), evaluated, equal)


def _same_quantity(gold: Quantity, said: Quantity, evaluated: bool, equal: Equal) -> bool:
    """Return whether two quantities are equal; a unit may be missing, but other words may not be added."""
    if said.unit and said.unit != gold.unit and (gold.unit or not said.known):
        return False
    theirs, ours = unwrapped(gold.value), unwrapped(said.value)
    digits, others = numeral(theirs), numeral(ours)
    if "_" in theirs + ours and digits and others:
        return digits == others or (not evaluated and int(*digits) == int(*others))
    wanted, found = literal(theirs), literal(ours)
    if wanted is not None and (found is not None or evaluated):
        return found is not None and found * said.factor == wanted * gold.factor
    if gold.factor != said.factor:
        return False
    return theirs.replace(" ", "") == ours.replace(" ", "") or equal(theirs, ours, evaluated)


def _same_chain(gold: str, parts: list[str], evaluated: bool, equal: Equal) -> bool:
    """Return whether a chain "a = b = c" ends in the gold, and each part before is a name or has the same value."""
    *before, last = [part.strip() for part in parts]
    if len(before) > 5 or not last or not same(gold, last, evaluated, equal):
        return False
    return all(NAME.fullmatch(part) or (part and same(gold, part, False, equal)) for part in before)
