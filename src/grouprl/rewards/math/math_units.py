r"""Quantities: a value, the words after it, and what they make of it.

The rule for words after a value: names of units and of counted things (`UNITS`, `COUNTED`) are a unit, which golds may
omit; multipliers ("million", "dozen", "percent") multiply; any other words make an answer something other than the
value, unless the gold has the same ones. "5 million" is 5000000 and not 5; "5 is wrong" is not 5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MULTIPLIERS = {
    "hundred": Fraction(100),
    "thousand": Fraction(10**3),
    "million": Fraction(10**6),
    "billion": Fraction(10**9),
    "trillion": Fraction(10**12),
    "dozen": Fraction(12),
    "percent": Fraction(1, 100),
}
SAME = (
    "deg degree degrees",
    "rad radian radians",
    "nm nanometer nanometre",
    "μm micrometer micrometre micron",
    "mm millimeter millimetre",
    "cm centimeter centimetre",
    "dm decimeter decimetre",
    "m meter metre",
    "km kilometer kilometre",
    "in inch inches",
    "ft foot feet",
    "yd yard",
    "mi mile",
    "acre",
    "ha hectare",
    "mg milligram",
    "g gram",
    "kg kilogram kilo",
    "t ton tonne",
    "oz ounce",
    "lb lbs pound",
    "ml milliliter millilitre",
    "cl centiliter centilitre",
    "l liter litre",
    "gal gallon",
    "qt quart",
    "pt pint",
    "cup",
    "teaspoon tsp",
    "tablespoon tbsp",
    "ms millisecond",
    "s sec second",
    "min minute",
    "h hr hrs hour",
    "day",
    "week",
    "month",
    "yr year",
    "decade",
    "century centuries",
    "mph",
    "kph kmh",
    "n newton",
    "j joule",
    "kj kilojoule",
    "cal calorie",
    "kcal kilocalorie",
    "w watt",
    "kw kilowatt",
    "kwh",
    "v volt",
    "a amp ampere",
    "ohm",
    "hz hertz",
    "pa pascal",
    "atm atmosphere",
    "bar",
    "k kelvin",
    "c celsius",
    "f fahrenheit",
    "mol mole",
    "bit",
    "byte",
    "dollar usd",
    "cent",
    "euro eur",
    "yen",
    "rupee",
    "penny pence pennies",
    "unit",
)
"""Names of the same unit, the first of which stands for all; a plural with s need not be listed."""
UNITS = {name: names.split()[0] for names in SAME for name in names.split()}
COUNTED = frozenset(
    name
    for names in (
        "apple ball banana bead block book bottle box boxes boy bus buses candy candies car card chair chicken child",
        "children choice class classes coin combination cookie cow customer cube cupcake diagonal digit edge egg",
        "element face factor fish flower friend game gallon girl goal guest hand head horse house integer item kid",
        "line lap letter man marble match matches member men number object orange outcome page pair pen pencil people",
        "person piece player point prime problem quarter question regions region root row score seat sheep shirt side",
        "slice solution space square step sticker stone student subset team term ticket time toy tree triangle trip",
        "turn value vertex vertices vote way wheel win woman women word worker zero zeros",
    )
    for name in names.split()
)
"""Things that are counted in word problems; a plural with s need not be listed."""
GLUE = ("per", "a", "each", "of", "and")
BEFORE = re.compile(r"\b(square|sq|cubic|cu)\.? (\w+)")
POWERS = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cu": "^3", "cubed": "^3"}
TEXT_BEHIND = re.compile(
    r"\\(?:text|mathrm|mbox|textbf)\s*\{(?!\s*(?:or|and|not)\b)([^{}\d]*(?:\^\d[^{}\d]*)*)\}\s*(\^\s*(?:\{\d\}|\d))?\s*\Z"
)
VALUE_ENDS = re.compile(r"(?:[\d})\]]|\\pi|(?<![a-zA-Z])[a-z]|\\circ)\s*\Z")
WORDS_BEHIND = re.compile(r"([-+]?[\d.,/]+)\s+([^\W\d_]{2,}(?:[ -][^\W\d_]{2,}){0,9})")
DEGREES = re.compile(r"(.*?)\^\s*(?:\{\s*\\circ\s*\}|\\circ)")


@dataclass(frozen=True)
class Quantity:
    """A value as text, what multiplies it, and its unit."""

    value: str
    factor: Fraction = Fraction(1)
    unit: str = ""
    """The unit with its first name, or other words as they are; '' if there are none."""
    known: bool = True
    """Whether the unit is one, or a counted thing."""


def quantity(text: str) -> Quantity:
    r"""Split a text: `5\text{ million cm}` has the value "5", the factor 1000000 and the unit "cm"."""
    value, words = _split(text)
    factor, left = _multiplied(words)
    units = [_unit(word) for word in left]
    known = all(each is not None for each in units)
    named = " ".join(filter(None, units) if known else (word.removesuffix("s") for word in left))
    return Quantity(value, factor, named, known)


def _split(text: str) -> tuple[str, list[str]]:
    """Return the value and the words after it, in LaTeX's text or plain after a number."""
    rest, words = text, list[str]()
    while (found := TEXT_BEHIND.search(rest)) and VALUE_ENDS.search(rest[: found.start()]):
        power = (found[2] or "").strip("^{}")
        words = [*_words(found[1]), *([f"^{power}"] if power else []), *words]
        rest = rest[: found.start()].rstrip()
    if found := DEGREES.fullmatch(rest):
        return found[1].strip(), ["deg", *words]
    if found := WORDS_BEHIND.fullmatch(rest):
        return found[1], [*_words(found[2]), *words]
    return rest if words else text, words


def _words(text: str) -> list[str]:
    """Return words in lower case; powers come after their unit, and a stroke is a word."""
    plain = re.sub(r"\bper cent\b", "percent", text.casefold().strip(" .,"))
    plain = BEFORE.sub(lambda found: f"{found[2]} {POWERS[found[1]]}", plain)
    for sign, instead in (("/", " per "), ("-", " "), ("^", " ^"), ("\u00b2", " ^2"), ("\u00b3", " ^3")):
        plain = plain.replace(sign, instead)
    return plain.split()


def _multiplied(words: list[str]) -> tuple[Fraction, list[str]]:
    """Return the product of the multipliers with which the words begin, and the other words."""
    factor = Fraction(1)
    for place, word in enumerate(words):
        if word not in MULTIPLIERS:
            return factor, words[place:]
        factor *= MULTIPLIERS[word]
    return factor, []


def _unit(word: str) -> str | None:
    """Return the first name of a unit, '' for a word that only joins units, None for any other word."""
    if word.startswith("^") or word in POWERS:
        return POWERS.get(word, word)
    if word in GLUE:
        return "" if word != "per" else "per"
    for name in (word, word.removesuffix("s")):
        if name in UNITS:
            return UNITS[name]
        if name in COUNTED:
            return name
    return None
