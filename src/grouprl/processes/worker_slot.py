"""A worker of a pool: heard, timed, and given up where it hangs, ends or talks nonsense."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from grouprl.processes.frames import BadReply
from grouprl.processes.worker_process import LONGEST_WAIT, START_SECONDS, WorkerProcess, wait_for_any

FAILED_STARTS = 3
"""So many workers in a row that cannot start end the run."""


@dataclass(frozen=True)
class WorkerLoss:
    """The reason why a worker is given up: it `ended`, is `late`, or what it sent is `wrong`."""

    kind: Literal["ended", "late", "wrong"]
    what: str = ""
    """The end of the process in words, or the start of the reply."""

    def at_start(self, what: str) -> str:
        """Return why a worker did not start: `what`, as users say it, unless it was late."""
        return what if self.kind != "late" else f"it was not ready after {START_SECONDS:g} s"


def _start_deadline() -> float:
    return time.monotonic() + START_SECONDS


@dataclass(eq=False)
class WorkerSlot:
    """A worker of a pool."""

    process: WorkerProcess
    deadline: float = field(default_factory=_start_deadline, kw_only=True)
    """When it is given up."""
    ready: bool = field(default=False, kw_only=True)
    """Whether it has imported what it serves."""

    def attend(self, take: Callable[[list[Any]], None]) -> WorkerLoss | None:
        """Have what the worker has said taken; return why it is to be given up, None where it is not.

        `take` raises BadReply on a reply that is none.
        """
        ended = self.process.ended()  # asked first: what it wrote before it ended is still read
        try:
            for reply in self.process.hear():
                take(reply)
        except BadReply as error:
            return WorkerLoss("wrong", str(error)[:200])
        if ended:
            return WorkerLoss("ended", self.process.how_it_ended())
        if time.monotonic() > self.deadline:
            self.process.say_where()
            return WorkerLoss("late")
        return None

    def evidence(self) -> str:
        """Return what the worker printed last, under a heading; "" where it printed nothing."""
        printed = self.process.last_output()
        return f"last output of the process:\n{printed}" if printed else ""


def wait_for_slots(slots: Iterable[WorkerSlot], longest: float = LONGEST_WAIT) -> list[WorkerProcess]:
    """Return the workers that have something to say, or take more, or whose time is up; waits at most `longest`."""
    given = list(slots)
    left = min(slot.deadline for slot in given) - time.monotonic()
    return wait_for_any([slot.process for slot in given], min(left, longest))
