"""A child takes its limits upon itself here: the life of its parent, and its memory."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import resource
import select
import signal


def die_with(lifeline: int) -> None:
    """Have the kernel kill this process group when the parent ends, however it ends: its side of a pipe closes then.

    This needs no running Python code, so it also ends a child that hangs. (A "parent death signal" would end this
    process alone, and would come when the thread that started it ends.)
    """
    if not hasattr(fcntl, "F_SETSIG"):  # not Linux: a child that hangs then outlives a parent that was killed
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # the parent ended before anybody listened: no signal will come
        os._exit(0)


def limit_resources(memory: int) -> None:
    """Allow at most `memory` bytes of memory of the process's own, and no core dumps."""
    with contextlib.suppress(ValueError, OSError):  # a lower limit is in force already, or the system knows none
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def show_stacks() -> None:
    """Print the stacks of all threads on SIGUSR1, and on a signal that ends the process for an error."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
