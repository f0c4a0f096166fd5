"""Gymnasium's spaces as text: observations are written out, and actions are read."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.array_spaces import legal_of, of_an_observation
from grouprl.protocols import Discrete

if TYPE_CHECKING:
    from gymnasium import Space

LARGEST_BOX = 100
"""The largest number of numbers in an observation that is written out; larger ones are images or the like."""
LARGEST_ACTION = 16
"""The largest number of numbers in an action that is written out."""
LARGEST_WHOLE = 1 << 63
"""The size from which on arrays hold no whole number."""


def spell(space: Space, value: Any, decimals: int) -> str:
    """Return an observation as text: numbers separated by spaces, "name value" for the entries of a Dict."""
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        return " ".join(spell(inner, part, decimals) for inner, part in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Dict):
        return " ".join(f"{name} {spell(inner, value[name], decimals)}" for name, inner in space.spaces.items())
    if isinstance(space, spaces.Box) and not _whole(space):
        return " ".join(_decimal(float(number), decimals) for number in value.ravel())
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        return " ".join(str(int(number)) for number in np.ravel(value))
    return str(value) if isinstance(space, spaces.Text) else str(int(value))


def signs(space: Space) -> str:
    """Return the characters that `spell` uses.

    Raises:
        InputError: the space cannot be written out, because it is of another kind or too large.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        return " ".join(map(signs, space.spaces))
    if isinstance(space, spaces.Dict):
        return " ".join(f"{name} {signs(inner)}" for name, inner in space.spaces.items())
    if isinstance(space, spaces.Box) and math.prod(space.shape) <= LARGEST_BOX:
        return "0123456789 -" if _whole(space) else "0123456789.- infa"
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        return "0123456789 -"
    if isinstance(space, spaces.Discrete):
        return "0123456789-"
    if isinstance(space, spaces.Text):
        return "".join(sorted(space.character_set))
    raise InputError(
        f"The observations {space} cannot be written out",
        f"they must be Discrete, Text, a Box of at most {LARGEST_BOX} numbers, or a Tuple or Dict of these",
        "Use a wrapper that describes them, such as gymnasium.wrappers.TransformObservation.",
    )


def countable(space: object) -> bool:
    """Return whether equal observations are likely: the space holds no real numbers."""
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        return all(map(countable, space.spaces))
    if isinstance(space, spaces.Dict):
        return all(map(countable, space.spaces.values()))
    return not isinstance(space, spaces.Box) or _whole(space)


def action_numbers(space: object) -> int:
    """Return how many numbers an action is written with.

    Raises:
        InputError: the actions of the space cannot be written as a few numbers.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return 1
    if isinstance(space, spaces.Tuple):
        return sum(map(action_numbers, space.spaces))
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        count = math.prod(space.shape)
        if count <= LARGEST_ACTION:
            return count
    raise InputError(
        f"The actions {space} cannot be written",
        f"they must be Discrete, a Box, MultiDiscrete or MultiBinary of at most {LARGEST_ACTION} numbers, or a Tuple",
        "Use a wrapper that translates them, such as gymnasium.wrappers.TransformAction.",
    )


@dataclass(frozen=True)
class SpaceWording:
    """The text form of the actions of spaces: `words` for Discrete ones, in order; without words, numbers."""

    words: tuple[str, ...]
    decimals: int = 2

    def legal(self, mask: object) -> tuple[str, ...]:
        """Return the words that a mask allows, all words without a mask; () without words.

        Raises:
            InputError: a mask of actions without words, of another length or of other values than true and false, or
                one that allows no word.
        """
        if mask is None:
            return self.words
        with of_an_observation():
            if not self.words:
                raise InputError(
                    "has a mask of legal actions", "only Discrete actions as text have one", "Leave it out"
                )
            legal_a = legal_of(Discrete(len(self.words)), mask)
        return tuple(word for word, may in zip(self.words, legal_a, strict=True) if may)

    def read(self, space: Space, text: str, legal: Sequence[str]) -> Any:
        """Return the action that a text means; None if it means no legal one."""
        if not self.words:
            return read_action(space, text.split())
        word = text.strip()
        return int(space.start) + self.words.index(word) if word in legal else None

    def any_action(self, space: Space, legal: Sequence[str], rng: random.Random) -> str:
        """Return a random legal action."""
        if self.words:
            return rng.choice(legal)
        space.seed(rng.randrange(2**31))
        return spell_action(space, space.sample(), self.decimals)


def number_words(space: object) -> tuple[str, ...]:
    """Return the numbers of Discrete actions as their words; () for other spaces."""
    from gymnasium.spaces import Discrete

    if not isinstance(space, Discrete):
        return ()
    return tuple(str(int(space.start) + number) for number in range(int(space.n)))


def read_action(space: Space, words: Sequence[str]) -> object:
    """Return the action that numbers, given as words, mean; None if they mean none of the space."""
    value = _read(space, list(words)) if len(words) == action_numbers(space) else None
    return value if value is not None and space.contains(value) else None


def spell_action(space: object, value: object, decimals: int) -> str:
    """Return the text of an action, which `read_action` reads word by word."""
    text = spell(space, value, decimals)
    return " ".join(f"{float(word):g}" for word in text.split())


def _read(space: Space, words: list[str]) -> Any:
    """Read a space's numbers from the beginning of `words`; None if one is not a number of the right kind."""
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        parts = tuple(_read(inner, words) for inner in space.spaces)
        return None if any(part is None for part in parts) else parts
    own = [words.pop(0) for _ in range(action_numbers(space))]
    numbers = [_number(word, isinstance(space, spaces.Box) and not _whole(space)) for word in own]
    if any(number is None for number in numbers):
        return None
    if isinstance(space, spaces.Discrete):
        return numbers[0]
    array = np.array(numbers, dtype=np.float64).reshape(space.shape)
    return array.astype(space.dtype) if np.isfinite(array).all() else None


def _number(word: str, real: bool) -> float | int | None:
    """Return the number of a word; None for no number, or a whole one that no array holds."""
    try:
        number = float(word) if real else int(word)
    except ValueError:
        return None
    return number if real or abs(number) < LARGEST_WHOLE else None


def _whole(space: Space) -> bool:
    """Return whether a Box holds whole numbers."""
    return np.issubdtype(space.dtype, np.integer) or space.dtype == np.bool_


def _decimal(number: float, decimals: int) -> str:
    """Return a rounded number as text, without the minus sign of a zero."""
    return f"{round(number, decimals) + 0.0:.{decimals}f}"
