"""Functions for small packages: each with possible bugs, and calls that reveal them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Bug:
    """A bug: one line with a wrong piece."""

    kind: str
    """The kind of bug: operator, off by one, default, swapped, edge case, constant."""
    right: str
    """The right piece of the line; the source contains it once."""
    wrong: str


@dataclass(frozen=True)
class CodePiece:
    """A function; in its source `{f}` stands for its name and `{g}` for the name of the function it uses."""

    names: tuple[str, ...]
    """The possible names of the function."""
    source: str
    calls: Callable[[random.Random], list[Arguments]]
    """Function that makes the arguments of a few calls from a random generator, different ones each time."""
    bugs: tuple[Bug, ...]
    uses: str = ""
    """The first name of the piece of another module that it uses."""


def _numbers(rng: random.Random, count: int) -> list[int]:
    return [rng.randint(-9, 30) for _ in range(count)]


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(("red", "Blue", "tin", "Oak", "sun", "Red", "oak")) for _ in range(words))


PIECES = (
    CodePiece(
        ("clamp", "limit", "bounded"),
        '''
def {f}(value, low, high):
    """Return value, or the bound that it lies beyond."""
    if value < low:
        return low
    if value > high:
        return high
    return value
''',
        lambda rng: [
            (v, 3, 12) for v in rng.sample(range(-9, 3), 2) + rng.sample(range(4, 12), 2) + [rng.randint(13, 40)]
        ],
        (Bug("operator", "value < low", "value > low"), Bug("swapped", "        return high", "        return low")),
    ),
    CodePiece(
        ("mean", "average", "middle"),
        '''
def {f}(values):
    """Return the mean of numbers, rounded down; 0 for none."""
    if not values:
        return 0
    return sum(values) // len(values)
''',
        lambda rng: [([],), *((_numbers(rng, n),) for n in (2, 3, 5, 7))],
        (
            Bug("edge case", "if not values:", "if values is None:"),
            Bug("off by one", "// len(values)", "// (len(values) + 1)"),
            Bug("operator", "sum(values) //", "sum(values) %"),
        ),
    ),
    CodePiece(
        ("window_sums", "rolling_sums", "moving_sums"),
        '''
def {f}(values, size=2):
    """Return the sums of all neighbours of so many numbers."""
    count = len(values) - size + 1
    return [sum(values[i:i + size]) for i in range(count)]
''',
        lambda rng: [(_numbers(rng, n), *size) for n, size in ((4, ()), (6, (3,)), (5, (1,)), (7, ()), (3, (3,)))],
        (
            Bug("off by one", "len(values) - size + 1", "len(values) - size"),
            Bug("default", "size=2", "size=3"),
            Bug("off by one", "values[i:i + size]", "values[i:i + size - 1]"),
        ),
    ),
    CodePiece(
        ("count_word", "occurrences", "times_said"),
        '''
def {f}(text, word):
    """Return how often a text has a word, in small letters or capitals."""
    words = text.lower().split()
    return sum(1 for each in words if each == word.lower())
''',
        lambda rng: (
            [(_text(rng, n), rng.choice(("red", "Oak", "blue"))) for n in (5, 7, 9, 11, 13)]
            + [("redder Red red", "RED")]
        ),
        (
            Bug("edge case", "text.lower().split()", "text.split()"),
            Bug("operator", "each == word.lower()", "each != word.lower()"),
            Bug("operator", "each == word.lower()", "word.lower() in each"),
        ),
    ),
    CodePiece(
        ("join_names", "listed", "enumerated"),
        '''
def {f}(names, comma=", ", last=" and "):
    """Return names as a list in words: "a, b and c"."""
    if len(names) < 2:
        return "".join(names)
    return comma.join(names[:-1]) + last + names[-1]
''',
        lambda rng: [([rng.choice("abcdefgh") * 2 for _ in range(n)],) for n in (0, 1, 2, 3, 4)],
        (
            Bug("default", 'comma=", "', 'comma=","'),
            Bug("off by one", "len(names) < 2", "len(names) < 1"),
            Bug("off by one", "names[:-1]", "names[:-2]"),
            Bug("swapped", "+ last + names[-1]", "+ names[-1] + last"),
        ),
    ),
    CodePiece(
        ("chunks", "pages", "slices"),
        '''
def {f}(values, size=3):
    """Return values in lists of so many; the last one may be shorter."""
    starts = range(0, len(values), size)
    return [values[start:start + size] for start in starts]
''',
        lambda rng: [(_numbers(rng, n), *size) for n, size in ((7, ()), (4, (2,)), (5, (4,)), (6, ()), (0, ()))],
        (
            Bug("default", "size=3", "size=2"),
            Bug("off by one", "range(0, len(values), size)", "range(0, len(values) - 1, size)"),
            Bug("off by one", "start:start + size", "start:start + size + 1"),
        ),
    ),
    CodePiece(
        ("is_leap", "leap_year", "has_leap_day"),
        '''
def {f}(year):
    """Return whether a year has a 29th of February."""
    if year % 100 == 0:
        return year % 400 == 0
    return year % 4 == 0
''',
        lambda rng: (
            [(400 * rng.randint(1, 6),), (100 * rng.choice((17, 18, 19, 21)),)]
            + [(4 * rng.randint(430, 474) + n,) for n in (0, 1, 2)]
            + [(100 * rng.choice((5, 7, 9)) + 4,)]
        ),
        (
            Bug("constant", "year % 400 == 0", "year % 300 == 0"),
            Bug("operator", "return year % 4 == 0", "return year % 4 != 0"),
            Bug("constant", "year % 100 == 0", "year % 10 == 0"),
        ),
    ),
    CodePiece(
        ("to_seconds", "seconds_of", "duration"),
        '''
def {f}(hours, minutes, seconds=0):
    """Return a time in seconds."""
    total = hours * 60 + minutes
    return total * 60 + seconds
''',
        lambda rng: [(rng.randint(1, 9), rng.randint(1, 59), *more) for more in ((), (rng.randint(1, 59),), (7,), ())],
        (
            Bug("operator", "total * 60 + seconds", "total * 60 - seconds"),
            Bug("swapped", "hours * 60 + minutes", "minutes * 60 + hours"),
            Bug("default", "seconds=0", "seconds=1"),
            Bug("constant", "hours * 60", "hours * 24"),
        ),
    ),
    CodePiece(
        ("discount", "reduced", "sale_price"),
        '''
def {f}(price, percent=10):
    """Return a price less so many percent, rounded down."""
    return price * (100 - percent) // 100
''',
        lambda rng: [(rng.randint(50, 900), *percent) for percent in ((), (25,), (rng.randint(30, 80),), (0,), ())],
        (
            Bug("operator", "100 - percent", "100 + percent"),
            Bug("default", "percent=10", "percent=20"),
            Bug("constant", "// 100", "// 10"),
        ),
    ),
    CodePiece(
        ("rotate", "turned", "shifted"),
        '''
def {f}(values, steps=1):
    """Return values moved so many places to the left, around the end."""
    if not values:
        return []
    cut = steps % len(values)
    return values[cut:] + values[:cut]
''',
        lambda rng: (
            [(list(range(n)), *steps) for n, steps in ((4, ()), (5, (2,)), (6, (rng.randint(7, 11),)), (0, ()))]
            + [(_numbers(rng, 5),)]
        ),
        (
            Bug("default", "steps=1", "steps=0"),
            Bug("swapped", "values[cut:] + values[:cut]", "values[:cut] + values[cut:]"),
            Bug("edge case", "steps % len(values)", "steps"),
        ),
    ),
    CodePiece(
        ("second_largest", "runner_up", "next_best"),
        '''
def {f}(values):
    """Return the largest number but one; None where there are not two."""
    ordered = sorted(set(values))
    if len(ordered) < 2:
        return None
    return ordered[-2]
''',
        lambda rng: [(rng.sample(range(50), n),) for n in (2, 3, 5)] + [([4, 4],), ([7, 3, 7, 1],), ([],)],
        (
            Bug("edge case", "sorted(set(values))", "sorted(values)"),
            Bug("off by one", "ordered[-2]", "ordered[-1]"),
            Bug("operator", "ordered[-2]", "ordered[1]"),
            Bug("off by one", "len(ordered) < 2", "len(ordered) < 3"),
        ),
    ),
    CodePiece(
        ("padded", "fill_left", "aligned"),
        '''
def {f}(number, width=4, mark="0"):
    """Return a number as text of a width, with marks before it."""
    text = str(number)
    return mark * (width - len(text)) + text
''',
        lambda rng: (
            [(rng.randint(0, 999), *more) for more in ((), (6,), (5, "*"), ())] + [(rng.randint(10**5, 10**6),)]
        ),
        (
            Bug("default", "width=4", "width=3"),
            Bug("default", 'mark="0"', 'mark=" "'),
            Bug("swapped", "mark * (width - len(text)) + text", "text + mark * (width - len(text))"),
            Bug("off by one", "width - len(text)", "width - len(text) + 1"),
        ),
    ),
    CodePiece(
        ("running_max", "records", "highest_so_far"),
        '''
def {f}(values):
    """Return for each number the largest one up to it."""
    found = []
    for value in values:
        found.append(max(value, found[-1]) if found else value)
    return found
''',
        lambda rng: [(_numbers(rng, n),) for n in (1, 4, 6, 8)] + [([],), ([3, 1, 2],)],
        (
            Bug("operator", "max(value, found[-1])", "min(value, found[-1])"),
            Bug("off by one", "found[-1]", "found[0]"),
        ),
    ),
    CodePiece(
        ("order_total", "bill", "checkout"),
        '''
def {f}(prices, percent):
    """Return the sum of prices, each less so many percent."""
    return sum({g}(price, percent) for price in prices)
''',
        lambda rng: [([rng.randint(20, 400) for _ in range(n)], rng.randint(5, 60)) for n in (1, 2, 3, 4)],
        (
            Bug("swapped", "{g}(price, percent)", "{g}(percent, price)"),
            Bug("default", "{g}(price, percent)", "{g}(price)"),
        ),
        uses="discount",
    ),
    CodePiece(
        ("clock", "as_time", "spelled_time"),
        '''
def {f}(hours, minutes):
    """Return a time of the day as "07:05"."""
    return {g}(hours, 2) + ":" + {g}(minutes, 2)
''',
        lambda rng: [(h, m) for h, m in zip(rng.sample(range(24), 5), rng.sample(range(60), 5), strict=True)],
        (
            Bug("swapped", "{g}(hours, 2) + ", "{g}(minutes, 2) + "),
            Bug("constant", "{g}(minutes, 2)", "{g}(minutes, 3)"),
        ),
        uses="padded",
    ),
    CodePiece(
        ("page_means", "mean_by_page", "means"),
        '''
def {f}(values, size):
    """Return the mean of each so many numbers, rounded down."""
    starts = range(0, len(values), size)
    return [{g}(values[i:i + size]) for i in starts]
''',
        lambda rng: [(_numbers(rng, n), size) for n, size in ((6, 2), (7, 3), (4, 4), (5, 2))],
        (
            Bug("off by one", "values[i:i + size]", "values[i + 1:i + size]"),
            Bug("swapped", "range(0, len(values), size)", "range(0, size, len(values))"),
        ),
        uses="mean",
    ),
)
"""All pieces; those that use others come last."""
