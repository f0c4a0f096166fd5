"""Limits that a child process sets for itself: it ends with its parent, and its memory is bounded."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import resource
import select
import signal


def die_with(lifeline: int) -> None:
    """Have the kernel kill this process group when the parent ends in any way, which closes the parent's side of a
    pipe.

    This needs no running Python code, so it also ends a child that hangs. (A "parent death signal" would end only this
    process, and would already arrive when the thread that started it ends.)
    """
    if not hasattr(fcntl, "F_SETSIG"):  # not Linux: a hanging child outlives a parent that was killed
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    # No event is asked for, because the end of the other side is always reported.
    poll.register(lifeline, 0)
    if poll.poll(0):  # the parent ended before the signal was set up: none will arrive
        os._exit(0)


def limit_resources(memory: int) -> None:
    """Allow the process at most `memory` bytes of private memory, and no core dumps."""
    with contextlib.suppress(ValueError, OSError):  # a lower limit is already in force, or the system has no such limit
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def show_stacks() -> None:
    """Print the stacks of all threads on SIGUSR1, and on a fatal signal."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
