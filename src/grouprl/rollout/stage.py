"""Where environments act: calls to many of them at once, answered in order, failures named and never raised."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from grouprl.envs.environment import Environment
from grouprl.rewards.contract import LONGEST_MESSAGE, Failure

Call = tuple[int, tuple[Any, ...]]
"""Number of an episode, and what its environment's method is called with."""
Held = dict[int, Any]
"""Environments by the number of their episode."""


class Stage(Protocol):
    """Holds one environment per episode. A method of many of them is called at once, in the order of the calls."""

    def call(self, method: str, calls: Sequence[Call]) -> list[Any | Failure]:
        """Return what each environment answers, or what it did instead.

        'reset' makes the environment first; 'score' gives (whether by agent, components); 'close' forgets it.
        """
        ...

    def close(self) -> None:
        """Close every environment that is left; may be called twice."""
        ...


class HereStage:
    """Environments in this process: the quickest, for those that always return."""

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._make = make
        self._held: Held = {}

    def call(self, method: str, calls: Sequence[Call]) -> list[Any | Failure]:
        """Call one after the other."""
        return [perform(self._held, self._make, method, number, arguments) for number, arguments in calls]

    def close(self) -> None:
        """Close what is left."""
        for number in list(self._held):
            perform(self._held, self._make, "close", number, ())


def perform(held: Held, make: Callable[[], Any], method: str, number: int, arguments: tuple[Any, ...]) -> Any | Failure:
    """Call `method` of environment `number`; what it raises becomes a Failure."""
    asked = "environment()" if method == "reset" else f"{method}()"
    try:
        if method == "reset":
            held[number] = make()
            asked = "reset()"
        elif method == "score":
            return _scores(held[number])
        elif method == "close":
            return held.pop(number).close() if number in held else None
        return getattr(held[number], method)(*arguments)
    except (Exception, SystemExit) as error:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        what = f"{asked} raised {type(error).__name__}: {error}"
        return Failure(what[:LONGEST_MESSAGE], trace[-LONGEST_MESSAGE:], "error")


def _scores(environment: Any) -> tuple[bool, Any]:
    """Return whether an environment scores each agent for itself, and the scores."""
    if callable(getattr(environment, "scores", None)):
        return True, environment.scores()
    return False, environment.score()
