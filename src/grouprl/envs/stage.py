"""Where environments act: calls to many of them at once, answered in order, failures named and never raised."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from grouprl.core.hashing import generator
from grouprl.envs.environment import Patient, unwritable
from grouprl.rewards.contract import LONGEST_MESSAGE, Failure

Call = tuple[int, tuple[Any, ...]]
"""Number of an episode, and what its environment's method is called with."""

WAITING = object()
"""Stands for the answer of an environment that has received a call and whose answer is not yet waited for."""
LONGEST_TEXT = 1_000_000
"""Characters of an observation; an environment that says more has failed."""


class Stage(Protocol):
    """Holds one environment per episode. A method of many of them is called at once, in the order of the calls."""

    def call(self, method: str, calls: Sequence[Call]) -> list[Any | Failure]:
        """Return each environment's answer, or its failure.

        'reset' makes the environment first; 'score' gives (whether by agent, components); 'demonstrate' is given what
        its random numbers come from; 'close' forgets the environment.
        """
        ...

    def clear(self) -> None:
        """Close every environment that is left."""
        ...

    def close(self) -> None:
        """Give everything back; may be called twice."""
        ...


class Environments:
    """The environments of one process, by the number of their episode."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._held: dict[int, Any] = {}
        self._luck: dict[int, Any] = {}
        self._begun: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number in self._held

    def __iter__(self) -> Any:
        return iter(list(self._held))

    def call(self, method: str, number: int, arguments: tuple[Any, ...], *, early: bool = False) -> Any | Failure:
        """Call `method` of environment `number`; what it raises becomes a Failure.

        `early`: an environment that is `Patient` only receives the call, and WAITING is returned.
        """
        try:
            return _handled(self._called(method, number, arguments, early))
        except (Exception, SystemExit) as error:
            made = method != "reset" or number in self._held
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            what = f"{method if made else 'environment'}() raised {type(error).__name__}: {error}"
            return Failure(what[:LONGEST_MESSAGE], trace[-LONGEST_MESSAGE:], "error")

    def _called(self, method: str, number: int, arguments: tuple[Any, ...], early: bool) -> Any:
        if method == "reset" and number not in self._begun:
            self._held[number] = self._make()
        elif method == "score":
            return _scores(self._held[number])
        elif method == "demonstrate":
            return self._held[number].demonstrate(self._luck_of(number, arguments))
        elif method == "close":
            self._luck.pop(number, None)
            self._begun.discard(number)
            return self._held.pop(number).close() if number in self._held else None
        environment = self._held[number]
        if early and method in ("reset", "step") and isinstance(environment, Patient):
            environment.begin_call(method, *arguments)
            self._begun.add(number)
            return WAITING
        self._begun.discard(number)
        return getattr(environment, method)(*arguments)

    def _luck_of(self, number: int, parts: tuple[Any, ...]) -> Any:
        if number not in self._luck:
            self._luck[number] = generator("demonstrate", *parts)
        return self._luck[number]


class HereStage:
    """Environments in this process: the quickest, for those that always return."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._held = Environments(make)

    def call(self, method: str, calls: Sequence[Call]) -> list[Any | Failure]:
        """Call one after the other; those that wait for something outside wait at the same time."""
        found = [self._held.call(method, number, arguments, early=True) for number, arguments in calls]
        return [
            self._held.call(method, number, arguments) if each is WAITING else each
            for each, (number, arguments) in zip(found, calls, strict=True)
        ]

    def clear(self) -> None:
        """Close what is left."""
        for number in self._held:
            self._held.call("close", number, ())

    def close(self) -> None:
        """Close what is left."""
        self.clear()


def _handled(found: Any) -> Any | Failure:
    """Return an environment's answer, unless it is larger than can be handled, or not a text."""
    text = getattr(getattr(found, "observation", found), "text", "")
    if isinstance(text, str) and len(text) > LONGEST_TEXT:
        return Failure(f"an observation has {len(text)} characters; {LONGEST_TEXT} is the limit", "", "error")
    if isinstance(text, str) and (half := unwritable(text)) is not None:
        what = f"an observation holds {half!r}, half of a character; a text can be written as UTF-8"
        return Failure(what, "", "error")
    return found


def _scores(environment: Any) -> tuple[bool, Any]:
    """Return whether an environment scores each agent for itself, and the scores."""
    if callable(getattr(environment, "scores", None)):
        return True, environment.scores()
    return False, environment.score()
