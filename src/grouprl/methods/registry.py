"""The catalogue: names, cards and the functions that compose a method from parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pydantic

from grouprl.errors import InputError, suggest
from grouprl.method import Method
from grouprl.methods.card import Card
from grouprl.parts.part import checked

CATALOGUE: dict[str, Entry] = {}


@dataclass(frozen=True)
class Entry:
    """One catalogue entry: its name, card and composing function."""

    name: str
    card: Card
    compose: Callable[..., Method]

    @property
    def settings(self) -> dict[str, Any]:
        """The entry's settings with their defaults."""
        return {p.name: p.default for p in inspect.signature(self.compose).parameters.values()}

    @property
    def family(self) -> str:
        """Module of the catalogue that holds the entry."""
        return self.compose.__module__.rsplit(".", 1)[-1]

    @property
    def dialect_of(self) -> str:
        """Name of the peer whose numbers the entry has ('trl' for `grpo@trl`), or ''."""
        return self.name.partition("@")[2]

    def build(self, **settings: Any) -> Method:
        """Compose the method; InputError on unknown or ill-typed settings, with a suggestion."""
        method = checked(_validated(self.compose), settings, f"method {self.name}")
        if not isinstance(method, Method):
            raise InputError(f"method {self.name} returned {type(method).__name__}", "it must return a grouprl.Method")
        return replace(method, name=self.name, settings={**self.settings, **settings})

    def inert(self, settings: Mapping[str, Any]) -> list[str]:
        """Names of `settings` off their default that change no part, such as a KL estimator without a KL weight."""
        whole = self.build(**settings)
        off_default = [name for name, value in settings.items() if value != self.settings[name]]
        rest = {name: {k: v for k, v in settings.items() if k != name} for name in off_default}
        return [name for name in off_default if self._builds(rest[name], whole)]

    def _builds(self, settings: Mapping[str, Any], whole: Method) -> bool:
        """Whether `settings` make the parts of `whole`; those that contradict each other make none."""
        try:
            return replace(self.build(**settings), settings=whole.settings) == whole
        except InputError:
            return False


def entry(name: str, card: Card) -> Callable[[Callable[..., Method]], Callable[..., Method]]:
    """Register the decorated composing function as catalogue entry `name`.

    Third-party methods register the same way; a name can be taken only once.
    """

    def register(compose: Callable[..., Method]) -> Callable[..., Method]:
        if name in CATALOGUE:
            raise InputError(f"the method '{name}' exists already", "a catalogue name means one thing")
        CATALOGUE[name] = Entry(name, card, compose)
        return compose

    return register


def find(name: str) -> Entry:
    """Return the catalogue entry `name`; InputError with suggestions when there is none."""
    if name not in CATALOGUE:
        raise InputError(f"unknown method '{name}'", remedy=suggest(name, CATALOGUE) + " See: grouprl methods")
    return CATALOGUE[name]


def method(name: str, **settings: Any) -> Method:
    """Return the method `name` of the catalogue with some settings changed: `method("dapo", clip_high=0.3)`."""
    return find(name).build(**settings)


def methods() -> Mapping[str, Entry]:
    """Return the whole catalogue by name."""
    return dict(CATALOGUE)


def _validated(compose: Callable[..., Method]) -> Callable[..., Method]:
    def call(**settings: Any) -> Method:
        return pydantic.validate_call(compose)(**settings)

    call.__signature__ = inspect.signature(compose)  # type: ignore[attr-defined]
    return call
