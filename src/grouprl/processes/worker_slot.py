"""A worker of a pool: read from, timed, and given up if it hangs, ends or sends something invalid."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from grouprl.processes.frames import BadReply
from grouprl.processes.hanging_place import hanging_place
from grouprl.processes.worker_process import LONGEST_WAIT, START_SECONDS, WorkerProcess, wait_for_any

FAILED_STARTS = 3
"""Number of workers in a row that may fail to start before the run ends."""


@dataclass(frozen=True)
class WorkerLoss:
    """The reason why a worker is given up: it has `ended`, is `late`, or sent something `wrong`."""

    kind: Literal["ended", "late", "wrong"]
    what: str = ""
    """A description of the process's end, or the start of the wrong reply."""

    def at_start(self, what: str) -> str:
        """Return a sentence on why a worker did not start, from its description `what`; a late worker gets its own
        sentence.
        """
        return what if self.kind != "late" else f"it was not ready after {START_SECONDS:g} s"


def _start_deadline() -> float:
    return time.monotonic() + START_SECONDS


@dataclass(eq=False)
class WorkerSlot:
    """A worker of a pool, with its deadline."""

    process: WorkerProcess
    deadline: float = field(default_factory=_start_deadline, kw_only=True)
    """The time at which it is given up."""
    ready: bool = field(default=False, kw_only=True)
    """Whether it has imported its function."""

    def attend(self, take: Callable[[list[Any]], None]) -> WorkerLoss | None:
        """Pass the worker's replies to `take`; return why it is to be given up, or None if it is not. `take` raises
        BadReply on an invalid reply.
        """
        ended = self.process.ended()  # checked before reading, so that replies written before the end are still read
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

    def hung_in(self) -> str:
        """Return "; it hung in ..." with the user's function and line in the stack that the worker printed, or ''."""
        place = hanging_place(self.process.last_output())
        return f"; it hung in {place}" if place else ""

    def evidence(self) -> str:
        """Return the end of the worker's output under a heading; "" if it printed nothing."""
        printed = self.process.last_output()
        return f"last output of the process:\n{printed}" if printed else ""


def wait_for_slots(slots: Iterable[WorkerSlot], longest: float = LONGEST_WAIT) -> list[WorkerProcess]:
    """Return the workers that have sent something, can accept more, or are overdue; wait at most `longest`."""
    given = list(slots)
    left = min(slot.deadline for slot in given) - time.monotonic()
    return wait_for_any([slot.process for slot in given], min(left, longest))
