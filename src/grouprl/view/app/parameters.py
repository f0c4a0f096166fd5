"""The parameters of a question to the application, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from grouprl.core.errors import InputError, shortened, suggest

DIGITS = 18
"""Digits of the largest whole number that is read: what a column of 64 bits holds at any rate."""


class Parameters:
    """The parameters of a question, each with one value or several, as texts."""

    def __init__(self, given: Mapping[str, Sequence[str]], known: Sequence[str]) -> None:
        """Take the parameters of a question that may have the `known` ones.

        Raises:
            InputError: a parameter is unknown.
        """
        for name in given:
            if name not in known:
                raise InputError(f"there is no parameter '{name}' here", remedy=suggest(name, known))
        self._given = given

    def texts(self, name: str) -> list[str]:
        """Return all values of a parameter that may be repeated; [] if it is absent."""
        return [text for text in self._given.get(name, ()) if text != ""]

    def text(self, name: str, default: str = "") -> str:
        """Return the value of a parameter.

        Raises:
            InputError: it has several values.
        """
        found = self.texts(name)
        if len(found) > 1:
            raise InputError(f"{name} is given {len(found)} times", "it may have only one value here")
        return found[0] if found else default

    def whole(self, name: str, default: int | None = None) -> int | None:
        """Return the value of a parameter as a whole number; `default` if it is absent.

        Raises:
            InputError: it is not one, or has more digits than any number of a run.
        """
        text = self.text(name)
        if not text:
            return default
        if not text.removeprefix("-").isdecimal() or len(text) > DIGITS:
            raise InputError(f"{name}={shortened(text, 60)}", f"it must be a whole number of at most {DIGITS} digits")
        return int(text)

    def number(self, name: str) -> float | None:
        """Return the value of a parameter as a number; None if it is absent.

        Raises:
            InputError: it is not a number, or is not finite.
        """
        text = self.text(name)
        try:
            value = float(text) if text else None
        except ValueError:
            raise InputError(f"{name}={text}", "it must be a number") from None
        if value is not None and not isfinite(value):
            raise InputError(f"{name}={text}", "it must be a finite number")
        return value

    def needed(self, name: str) -> str:
        """Return the value of a parameter that must be given.

        Raises:
            InputError: it is absent.
        """
        text = self.text(name)
        if not text:
            raise InputError(f"{name} is missing", "this question needs it")
        return text
