"""A worker process of environments and its calls: those queued here, and those already sent to it."""

from __future__ import annotations

import math
import pickle
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from grouprl.processes.fork_server import WorkerStarter
from grouprl.processes.usage import processor_seconds
from grouprl.processes.worker_process import end_workers
from grouprl.processes.worker_slot import WorkerSlot
from grouprl.rewards.contract import Failure

QUICK = 0.002
"""If calls take fewer seconds than this, a worker is sent several ahead, so that it never waits for the next one."""
AHEAD = 16
"""The number of calls that a worker is sent ahead."""
SENT = 3
"""The number of calls sent at a time otherwise: while a batch is decoded, the answer to a finished call is not read."""
GRACE = 5.0
"""Seconds beyond twice the time limit after which a worker that enforces the limit itself has failed to do so."""
WAITING_SHARE = 0.5
"""A process that uses less than this share of a processor counts as waiting."""


@dataclass(eq=False)
class StageCall:
    """One call: its environment, its arguments, and its answer if that is already known."""

    episode: int
    method: str
    arguments: tuple[object, ...]
    known: object = None
    answered: bool = False
    seconds: float = 0.0
    """Seconds that the call took."""
    turn: int = 0
    """The number of answered calls of its episode."""


@dataclass(eq=False)
class Slot(WorkerSlot):
    """A worker and its calls."""

    key: Hashable
    timeout: float
    apart: bool = False
    """Whether it holds a single episode, which is suspected of having ended another worker's process."""
    spare: bool = False
    """Whether it was started to help the others, and gets no work before it is ready."""
    together: bool = False
    """Whether its calls wait at the same time."""
    queued: deque[StageCall] = field(default_factory=deque)
    """Calls that are queued here."""
    sent: dict[int, StageCall] = field(default_factory=dict)
    """Calls that were sent to the worker, by their number, the oldest first."""
    running: int = 0
    """The number of the call that is running in the process; 0: none, or unknown."""
    episodes: dict[int, None] = field(default_factory=dict)
    """Episodes whose environments are in this worker, in the order of their latest calls."""
    since: float = 0.0
    """The time when its oldest call began to run."""
    usual: dict[str, float] = field(default_factory=dict)
    """Seconds of a call by method, smoothed."""
    _seen: tuple[float, float] | None = None

    def feed(self, number: Iterator[int]) -> None:
        """Send queued calls, as many as the worker should have. Raises any exception that pickling the arguments
        raises.
        """
        while self.queued and (self.together or len(self.sent) < self._ahead()):
            each = self.queued[0] if self.together or self._quick() else self._furthest()
            own = next(number)
            # Pickled while it is still queued: if that raises, the call is not lost.
            frame = pickle.dumps((own, each.method, each.episode, each.arguments))
            self.queued.remove(each)
            if not self.sent:
                self.begun()
            self.sent[own] = each
            self.process.send(frame)

    def _ahead(self) -> int:
        known = self.queued[0].method in self.usual  # a worker without an answer yet may be lost in its first call
        return AHEAD if self._quick() else SENT if known else 1

    def _quick(self) -> bool:
        return self.usual.get(self.queued[0].method, math.inf) < QUICK

    def _furthest(self) -> StageCall:
        """Return the next call of the episode that has advanced furthest.

        That way episodes end one after the other, and those that have hardly begun are cheap to restore elsewhere.
        """
        turns = {each.episode: each.turn for each in self.queued}
        return max(self.queued, key=lambda each: turns[each.episode])

    def begun(self) -> None:
        """Record that a call begins to run now."""
        self.since, self._seen = time.monotonic(), None
        if self.ready and not self.together:
            self.deadline = self.since + self.timeout

    def started(self, together: bool) -> None:
        """Record that the worker is ready, and whether its calls wait at the same time."""
        self.ready, self.together, self.spare = True, together, False
        self.begun()
        if together:
            self.watch(0)

    def taken(self, number: int, seconds: float) -> StageCall:
        """Return call `number`, which is answered. Raises KeyError if the worker does not have it, or not yet."""
        # calls that do not wait together are answered in the order in which they were sent
        if not self.together and number != next(iter(self.sent), None):
            raise KeyError(number)
        each = self.sent.pop(number)
        each.seconds = seconds
        self.usual[each.method] = 0.8 * self.usual.get(each.method, seconds) + 0.2 * seconds
        if self.together:
            self.watch(self.running)
        elif self.sent:
            self.begun()
        else:
            self.deadline = math.inf
        return each

    def watch(self, running: int) -> None:
        """Record which call is running, and start its time limit; calls that only wait are given up by the worker
        itself.
        """
        self.running = running
        patience = self.timeout if running else 2 * self.timeout + GRACE
        self.deadline = time.monotonic() + patience if self.sent else math.inf

    def open_calls(self) -> list[StageCall]:
        """Return the calls that have no answer yet."""
        return [each for each in (*self.sent.values(), *self.queued) if not each.answered]

    @property
    def culprit(self) -> StageCall | None:
        """The call that is running; None if it is unknown."""
        return self.sent.get(self.running) if self.together else next(iter(self.sent.values()), None)

    @property
    def idle(self) -> bool:
        """True if it is ready and has nothing to do."""
        return self.ready and not self.sent and not self.queued

    def waits(self, at_least: float) -> bool:
        """Return whether its call has run for `at_least` seconds and is waiting for something instead of computing."""
        now = time.monotonic()
        if self.together or not self.ready or not self.sent or now - self.since < at_least:
            return False
        used = processor_seconds(self.process.child.pid)
        if used is None:
            return True
        if self._seen is None:
            self._seen = now, used
        then, before = self._seen
        return now - then >= at_least and used - before < WAITING_SHARE * (now - then)

    def movable(self, seconds: Callable[[int], float]) -> int | None:
        """Return the episode that can be restored elsewhere in the fewest seconds; None without one.

        `seconds(episode)` is that time, which must be less than its call has been waiting.
        """
        return min(self._movable(seconds), key=seconds, default=None)

    def behind(self, seconds: Callable[[int], float]) -> int:
        """Return how many episodes could be restored elsewhere; see `movable`."""
        return len(self._movable(seconds))

    def _movable(self, seconds: Callable[[int], float]) -> list[int]:
        running = next(iter(self.sent.values()), None)
        waited = time.monotonic() - self.since
        others = dict.fromkeys(each.episode for each in self.open_calls())
        return [one for one in others if (running is None or one != running.episode) and seconds(one) <= waited]

    def release(self, episode: int) -> list[StageCall]:
        """Give up an episode whose call is not running; return its unanswered calls.

        The worker still performs calls that it was sent already, but their answers are dropped.
        """
        own = [each for each in self.open_calls() if each.episode == episode]
        new = any(each.method == "reset" for each in self.queued if each.episode == episode)
        self.queued = deque(each for each in self.queued if each.episode != episode)
        for number, each in self.sent.items():  # the worker answers them all the same, in the order of their numbers
            if each.episode == episode:
                self.sent[number] = StageCall(episode, "close", (), answered=True)
        self.episodes.pop(episode, None)
        if not new:
            self.queued.append(StageCall(episode, "close", (), answered=True))
        return own


def end(slots: dict[Hashable, Slot], starter: WorkerStarter) -> None:
    """End the workers, idle ones by themselves and the others at once, then the process that started them."""
    end_workers((slot.process, slot.ready and not slot.sent) for slot in slots.values())
    slots.clear()
    starter.close()


def unlike(each: StageCall, found: object) -> Failure:
    """Return the failure of a restored environment that answers `each` with `found` instead of its earlier answer."""
    before, now = (repr(getattr(x, "observation", x))[:120] for x in (each.known, found))
    return Failure(
        f"it is not reproducible: made anew with the same seed and actions, {each.method}() gave {now} where it had "
        f"given {before}. Draw everything random from the seed",
        "",
        "error",
    )
