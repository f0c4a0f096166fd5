"""Named spans of hot code, for whoever wants to know where time goes.

Hot code says what it is about, once, where it stands: `with span("score"): …`, or `@spanned("products")` on a function.
Nobody listens in an ordinary run; a span then costs a look at a global, some tens of nanoseconds. A `Listener` is told
of every span while it is `listening`; it sees no argument and no result, and so it can change none.
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
    """Hears of spans, in the order of their nesting, and of what they were about."""

    def enter(self, name: str) -> None:
        """Hear that a span begins."""
        ...

    def leave(self, name: str) -> None:
        """Hear that the innermost span ends, by an exception too."""
        ...

    def note(self, what: str, facts: tuple[object, ...]) -> None:
        """Hear what is being done inside the spans that are open; nothing in `facts` may be changed."""
        ...


_listener: Listener | None = None
_thread = 0
"""The thread that listens: spans of other threads run beside its own and belong to none of them."""


def hearing() -> Listener | None:
    """Return who listens to this thread."""
    return _listener if _listener is not None and threading.get_ident() == _thread else None


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` of the spans of this thread for a while, in place of whoever listened before."""
    global _listener, _thread
    before = _listener, _thread
    _listener, _thread = listener, threading.get_ident()
    try:
        yield
    finally:
        _listener, _thread = before


class span:
    """`with span(name): …` is the span of a block."""

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
    """Make every call of a function a span."""

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
    """Say what is being done, to whoever listens."""
    if (heard := hearing()) is not None:
        heard.note(what, facts)
