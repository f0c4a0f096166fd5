"""Named spans of hot code, for measuring where time goes.

Hot code names what it does in place: `with span("score"): …`, or `@spanned("products")` on a function.
An ordinary run has no listener; a span then costs one look at a global, some tens of nanoseconds. A `Listener` hears
of every span while it is `listening`; it sees neither arguments nor results, and so cannot change them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Listener(Protocol):
    """Receives the begin and end of every span, properly nested, and notes of what is done inside them."""

    def enter(self, name: str) -> None:
        """Receive the begin of a span."""
        ...

    def leave(self, name: str) -> None:
        """Receive the end of the innermost span, also if an exception ends it."""
        ...

    def note(self, what: str, facts: tuple[object, ...]) -> None:
        """Receive `what` is being done inside the open spans; the listener must not change anything in `facts`."""
        ...


_listener: Listener | None = None
_thread = 0
"""Id of the listening thread: spans of other threads run in parallel and are not part of its own."""


def hearing() -> Listener | None:
    """Return the listener of this thread, or None."""
    return _listener if _listener is not None and threading.get_ident() == _thread else None


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send this thread's spans to `listener` during the block, instead of to the previous listener."""
    global _listener, _thread
    before = _listener, _thread
    _listener, _thread = listener, threading.get_ident()
    try:
        yield
    finally:
        _listener, _thread = before


class span:
    """Context manager that makes its block a span: `with span(name): …`."""

    __slots__ = ("heard", "name")

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.heard = hearing()
        if self.heard is not None:
            self.heard.enter(self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.heard is not None:
            self.heard.leave(self.name)


def spanned(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that makes every call of a function a span."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def within(*given: P.args, **named: P.kwargs) -> R:
            if _listener is None:
                return function(*given, **named)
            with span(name):
                return function(*given, **named)

        return within

    return decorate


def note(what: str, *facts: object) -> None:
    """Tell the listener, if there is one, what is being done."""
    if (heard := hearing()) is not None:
        heard.note(what, facts)
