"""Environments whose methods are coroutines: their event loop, and calls of them from blocking code."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

from grouprl.core.errors import raised

CALLED = ("reset", "step", "score", "scores", "close", "demonstrate")
"""Methods of an environment that may be coroutines."""


class BackgroundLoop:
    """The event loop of this process, in its own thread; it is started when first needed."""

    _here: BackgroundLoop | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.pid, self.loop = os.getpid(), asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="grouprl-environments", daemon=True).start()

    @classmethod
    def here(cls) -> BackgroundLoop:
        """Return the loop of this process; a forked process gets one of its own."""
        with cls._lock:
            if cls._here is None or cls._here.pid != os.getpid():
                cls._here = BackgroundLoop()
            return cls._here

    def start(self, waiting: Awaitable[object], done: Callable[[object], None]) -> None:
        """Await `waiting`, which must not raise, and pass its result to `done` in the loop's thread."""

        async def deliver() -> None:
            done(await waiting)

        asyncio.run_coroutine_threadsafe(deliver(), self.loop)


def is_async(environment: object) -> bool:
    """Return whether one of the methods of an environment is a coroutine function."""
    return any(inspect.iscoroutinefunction(getattr(environment, name, None)) for name in CALLED)


def awaited(found: Any) -> Any:
    """Return the result of an environment's method; the result of a coroutine is waited for."""
    if not (hasattr(found, "__await__") or inspect.isgenerator(found)) or not inspect.isawaitable(found):
        return found  # the first look spares most results the second one, which takes longer than a small step

    async def result() -> Any:
        return await found

    return asyncio.run_coroutine_threadsafe(result(), BackgroundLoop.here().loop).result()


def close(environment: Any) -> None:
    """Close an environment; wait for it if that is a coroutine."""
    awaited(environment.close())


def close_or_warn(environment: object, who: str) -> None:
    """Close an environment that was only looked at; warn where that fails, since its episodes count all the same."""
    try:
        close(environment)
    except (Exception, SystemExit) as error:
        warn_not_closed(who, raised(error))


def warn_not_closed(who: str, what: str) -> None:
    """Warn that closing an environment failed: what was played with it counts all the same."""
    told = f"{who} failed to close: {what}. Its episodes count all the same. Fix its close()"
    warnings.warn(told, RuntimeWarning, stacklevel=3)
