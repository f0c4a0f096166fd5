"""The time limit of the completion being scored, so that a reward can give less to the programs it starts.

A worker process sets the limit; a reward that runs in the trainer's process has none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")

_DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)


def left() -> float | None:
    """Return the seconds until scoring is given up, at least 0; None without a limit."""
    deadline = _DEADLINE.get()
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def each_within(seconds: float | None, found: Iterator[Item]) -> Iterator[Item]:
    """Yield the items of `found`, with a limit of `seconds` on computing each; None sets no limit."""
    while True:
        token = _DEADLINE.set(None if seconds is None else time.monotonic() + seconds)
        try:
            item = next(found)
        except StopIteration:
            return
        finally:
            _DEADLINE.reset(token)
        yield item
