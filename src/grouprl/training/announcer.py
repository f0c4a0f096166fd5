"""Telling a run's listeners of its events."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

import torch

from grouprl.core.errors import InputError
from grouprl.protocols.run_events import METHODS, Event, RunBegan, RunListener, UserMessage


class Announcer:
    """Tells each event to the run's own listeners, then to added ones in their order, then to those that judge.

    An error of the run's own listeners ends the run: its record could not be written. An added listener that fails
    at the start also ends the run, before anything is trained. If one fails later, its error is reported, it receives
    no more events, and the run continues unchanged.
    """

    def __init__(self, added: Sequence[RunListener] = ()) -> None:
        self.own: tuple[RunListener, ...] = ()
        self.last: tuple[RunListener, ...] = ()
        self._added = list(added)

    def tell(self, event: Event) -> None:
        """Tell one event to every listener.

        Raises:
            InputError: an added listener failed at the start of the run.
        """
        method = METHODS[type(event)]
        for listener in self.own:
            getattr(listener, method)(event)
        for listener in tuple(self._added):
            self._tell_added(listener, method, event)
        for listener in self.last:
            getattr(listener, method)(event)

    def say(self, text: str) -> None:
        """Send the user a message through the listeners."""
        self.tell(UserMessage(text))

    def _tell_added(self, listener: RunListener, method: str, event: Event) -> None:
        try:
            with torch.random.fork_rng(devices=[]):  # random numbers that a listener draws must not change the run
                getattr(listener, method)(event)
        except Exception as error:
            self._added = [each for each in self._added if each is not listener]
            what = f"the listener {type(listener).__name__} failed in {method}(): {_in_words(error)}"
            if isinstance(event, RunBegan):
                raise InputError(
                    what, "a listener must not fail as the run begins", "Fix it, or leave it out of listeners"
                ) from error
            self.say(f"{what}. It receives no more events; the run itself continues unchanged.")


def _in_words(error: Exception) -> str:
    """Describe an exception and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    said = f": {error}" if str(error) else ""
    return f"{type(error).__name__}{said} ({last.filename}, line {last.lineno})"
