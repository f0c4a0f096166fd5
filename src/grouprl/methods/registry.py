"""The catalogue: names, cards and the functions that compose a method from parts."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pydantic

from grouprl.algorithms.building import checked
from grouprl.algorithms.method import Method
from grouprl.core.discovery import Discovered, method_homes
from grouprl.core.errors import InputError, suggest
from grouprl.methods.card import Card

CATALOGUE: Discovered[Entry] = Discovered(method_homes)
"""Every entry by name; the module of an entry is imported when it is first looked up."""


@dataclass(frozen=True)
class Entry:
    """One catalogue entry: its name, the card and the composing function as they were written.

    `base` names the entry that this one starts from, `keeps` those of its settings that this one has too (None: all).
    `card` and `compose` are complete: they include what comes from the base.
    """

    name: str
    written: Card
    function: Callable[..., Method]
    base: str = ""
    keeps: tuple[str, ...] | None = None

    # The base is looked up when an entry is first used, not when it is registered: its module may import this one's.
    @functools.cached_property
    def card(self) -> Card:
        """The entry's card: the papers of a dialect are those of its method; settings of a base have
        the base's lines.
        """
        card = self.written
        if self.dialect_of and not card.papers:
            card = replace(card, papers=find(self.name.partition("@")[0]).card.papers)
        if not self.base:
            return card
        lines = find(self.base).card.defaults
        return replace(card, defaults={k: v for k, v in lines.items() if k in self.settings} | {**card.defaults})

    @functools.cached_property
    def compose(self) -> Callable[..., Method]:
        """The function that composes the method from the entry's settings."""
        return _upon(find(self.base), self) if self.base else self.function

    @functools.cached_property
    def _validated(self) -> Callable[..., Method]:  # made when it is first used, and once: it costs milliseconds
        return pydantic.validate_call(self.compose)

    @property
    def settings(self) -> dict[str, object]:
        """The entry's settings with their defaults."""
        return {p.name: p.default for p in inspect.signature(self.compose).parameters.values()}

    @property
    def family(self) -> str:
        """Family of the catalogue that holds the entry: the folder of its module; 'own' for a user's code."""
        module = self.function.__module__
        return module.rsplit(".", 2)[-2] if module.startswith("grouprl.") else "own"

    @property
    def dialect_of(self) -> str:
        """Name of the library whose numbers the entry has ('trl' for `grpo@trl`), or ''."""
        return self.name.partition("@")[2]

    def build(self, **settings: object) -> Method:
        """Compose the method. Raises InputError on unknown or ill-typed settings, with a suggestion."""
        method = checked(self._validated, settings, f"method {self.name}")
        if not isinstance(method, Method):
            raise InputError(f"method {self.name} returned {type(method).__name__}", "it must return a grouprl.Method")
        return replace(method, name=self.name, settings={**self.settings, **settings})

    def inert(self, settings: Mapping[str, object]) -> list[str]:
        """Return the names of changed `settings` that change no part, such as a KL estimator without a KL weight."""
        whole = self.build(**settings)
        off_default = [name for name, value in settings.items() if value != self.settings[name]]
        rest = {name: {k: v for k, v in settings.items() if k != name} for name in off_default}
        return [name for name in off_default if self._builds(rest[name], whole)]

    def _builds(self, settings: Mapping[str, object], whole: Method) -> bool:
        """Return whether `settings` give the parts of `whole`; contradictory settings give none."""
        try:
            return replace(self.build(**settings), settings=whole.settings) == whole
        except InputError:
            return False


def entry(
    name: str,
    compose: Callable[..., Method],
    card: Card,
    base: str = "",
    keeps: Sequence[str] | None = None,
) -> None:
    """Register the composing function `compose` as catalogue entry `name`.

    With `base` the function gets the base's method first, composed with the settings that the two share, and returns it
    with some parts exchanged. All settings of the base are settings of the entry too, or those named in `keeps`, with
    their types, defaults and lines of the card. A parameter of the function with the name of such a setting replaces
    its default, or takes the base's default if it has none. If its type differs from the base's, it is another setting
    of the same name: the base's method is composed without it.

        def mine(base: Method, power: float = 1.0) -> Method:
            return base.with_parts(token_weight=(Sharpen(power=power),))


        entry("mine", mine, Card(…), base="grpo")

    Third-party methods register the same way. Raises InputError if the name is taken.
    """
    if name in CATALOGUE.loaded() or CATALOGUE.home(name) not in ("", compose.__module__):
        raise InputError(f"the method '{name}' exists already", "a catalogue name means one thing")
    CATALOGUE[name] = Entry(name, card, compose, base, None if keeps is None else tuple(keeps))


def _upon(base: Entry, entry: Entry) -> Callable[..., Method]:
    """Return the composing function of an entry with a base, as a function of all its settings."""
    _, *own = _typed(entry.function).values()
    theirs = _typed(base.compose)
    parameters = _merged(entry, theirs, {p.name: p for p in own})

    shared = [k for k, p in theirs.items() if k in parameters and p.annotation == parameters[k].annotation]

    def whole(**settings: object) -> Method:
        given = {k: p.default for k, p in parameters.items() if p.default is not p.empty} | settings
        start = base.compose(**{k: given[k] for k in shared})
        return entry.function(start, **{p.name: given[p.name] for p in own})

    functools.update_wrapper(whole, entry.function)
    del whole.__wrapped__  # type: ignore[attr-defined]  # whoever asks for the signature must get this one
    whole.__annotations__ = {p.name: p.annotation for p in parameters.values()} | {"return": Method}
    whole.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    return whole


def _typed(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function by name, with their types resolved."""
    hints = typing.get_type_hints(function, include_extras=True)
    return {k: p.replace(annotation=hints.get(k, Any)) for k, p in inspect.signature(function).parameters.items()}


def _merged(
    entry: Entry, theirs: Mapping[str, inspect.Parameter], own: Mapping[str, inspect.Parameter]
) -> dict[str, inspect.Parameter]:
    """Return the parameters of an entry with a base: the base's in their order, then those that are new."""
    inherited = _inherited(entry, theirs)
    new = {k: p for k, p in own.items() if p.default is not p.empty or k not in theirs}
    chosen = {k: new.get(k, p) for k, p in theirs.items() if k in inherited or k in own} | new
    return {k: p.replace(kind=p.KEYWORD_ONLY) for k, p in chosen.items()}


def _inherited(entry: Entry, theirs: Mapping[str, object]) -> Sequence[str]:
    """Return the names of the base's settings that an entry keeps. Raises InputError on one that the base lacks."""
    for name in entry.keeps or ():
        if name not in theirs:
            where = f"method {entry.name} keeps the setting '{name}' of {entry.base}"
            raise InputError(where, f"{entry.base} has no such setting", suggest(name, theirs))
    return tuple(theirs) if entry.keeps is None else entry.keeps


def spelled(name: str) -> str:
    """Return the name of the catalogue that papers write differently: `dr_grpo` for "Dr. GRPO"; else `name` itself."""
    if name in CATALOGUE:
        return name
    found = [known for known in CATALOGUE if _letters(known) == _letters(name)]
    return found[0] if len(found) == 1 else name


def _letters(name: str) -> str:
    """Return a name without what papers and catalogue write differently: capitals, dots, spaces, hyphens, ++."""
    return re.sub(r"[^\w@]|_", "", name.lower().replace("++", "pp"))


def find(name: str) -> Entry:
    """Return the catalogue entry `name`, as `spelled` reads it. Raises InputError with suggestions if there is none."""
    name = spelled(name)
    if name not in CATALOGUE:
        remedy = f" See: grouprl methods, and for the method of a paper: grouprl papers {name}"
        raise InputError(f"unknown method '{name}'", remedy=suggest(name, CATALOGUE) + remedy)
    return CATALOGUE[name]


def method(name: str, **settings: object) -> Method:
    """Return the method `name` of the catalogue with some settings changed: `method("dapo", clip_high=0.3)`."""
    return find(name).build(**settings)


def methods() -> Mapping[str, Entry]:
    """Return the whole catalogue by name; an entry is imported when it is looked up."""
    return MappingProxyType(CATALOGUE)
