"""A worker process of environments and the calls that it has: those that wait here, and those that it was sent."""

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
"""Where calls take fewer seconds than that, a worker is sent several ahead: it never waits for the next one."""
AHEAD = 16
"""So many."""
SENT = 3
"""Calls that it is sent otherwise: while a batch is decoded nobody hears of the one that it has done."""
GRACE = 5.0
"""Seconds beyond twice the clock after which a worker that watches the clock of its calls itself has lost it."""
WAITING_SHARE = 0.5
"""A process that uses less than this share of a processor waits."""


@dataclass(eq=False)
class StageCall:
    """One call: its environment, its arguments, and its answer if that is known already."""

    episode: int
    method: str
    arguments: tuple[object, ...]
    known: object = None
    answered: bool = False
    seconds: float = 0.0
    """How long it took."""
    turn: int = 0
    """How many calls of its episode have been answered."""


@dataclass(eq=False)
class Slot(WorkerSlot):
    """A worker and its calls."""

    key: Hashable
    timeout: float
    apart: bool = False
    """Whether it holds one episode alone, which is suspected of having ended the process of others."""
    spare: bool = False
    """Whether it was started to help the others and has nothing to do before it is ready."""
    together: bool = False
    """Whether its calls wait at the same time."""
    queued: deque[StageCall] = field(default_factory=deque)
    """Calls that wait here."""
    sent: dict[int, StageCall] = field(default_factory=dict)
    """Calls that the worker has, by their number, the oldest first."""
    running: int = 0
    """Number of the call that has the process; 0: none, or not known."""
    episodes: dict[int, None] = field(default_factory=dict)
    """Whose environments live in it, in the order of their latest calls."""
    since: float = 0.0
    """When the oldest call that it has began to run."""
    usual: dict[str, float] = field(default_factory=dict)
    """Seconds of a call by its method, smoothed."""
    _seen: tuple[float, float] | None = None

    def feed(self, number: Iterator[int]) -> None:
        """Send on what waits, as far as the worker should have it. Raises whatever pickling the arguments raises."""
        while self.queued and (self.together or len(self.sent) < self._ahead()):
            each = self.queued[0] if self.together or self._quick() else self._furthest()
            own = next(number)
            frame = pickle.dumps((own, each.method, each.episode, each.arguments))
            self.queued.remove(each)
            if not self.sent:
                self.begun()
            self.sent[own] = each
            self.process.send(frame)

    def _ahead(self) -> int:
        known = self.queued[0].method in self.usual  # a worker that has answered none yet may be lost by the first
        return AHEAD if self._quick() else SENT if known else 1

    def _quick(self) -> bool:
        return self.usual.get(self.queued[0].method, math.inf) < QUICK

    def _furthest(self) -> StageCall:
        """Return the next call of the episode that has come furthest.

        Episodes end one after the other that way, and those that have hardly begun are cheap to bring back elsewhere.
        """
        turns = {each.episode: each.turn for each in self.queued}
        return max(self.queued, key=lambda each: turns[each.episode])

    def begun(self) -> None:
        """Note that a call begins to run now."""
        self.since, self._seen = time.monotonic(), None
        if self.ready and not self.together:
            self.deadline = self.since + self.timeout

    def started(self, together: bool) -> None:
        """Note that the worker is ready, and whether its calls wait at the same time."""
        self.ready, self.together, self.spare = True, together, False
        self.begun()
        if together:
            self.watch(0)

    def taken(self, number: int, seconds: float) -> StageCall:
        """Return call `number`, which is answered. Raises KeyError where the worker does not have it, or not yet."""
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
        """Note which call has the process, and set the clock: calls that only wait are given up by the worker."""
        self.running = running
        patience = self.timeout if running else 2 * self.timeout + GRACE
        self.deadline = time.monotonic() + patience if self.sent else math.inf

    def open_calls(self) -> list[StageCall]:
        """Calls that have no answer yet."""
        return [each for each in (*self.sent.values(), *self.queued) if not each.answered]

    @property
    def culprit(self) -> StageCall | None:
        """The call that has the process; None where that is not known."""
        return self.sent.get(self.running) if self.together else next(iter(self.sent.values()), None)

    @property
    def idle(self) -> bool:
        """True if it is ready and has nothing to do."""
        return self.ready and not self.sent and not self.queued

    def waits(self, at_least: float) -> bool:
        """Return whether its call has run for `at_least` seconds and waits for something instead of computing."""
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
        """Return the episode that costs the fewest seconds to be brought back elsewhere; None without one.

        `seconds(episode)` are those; they are less than its call has been kept waiting.
        """
        return min(self._movable(seconds), key=seconds, default=None)

    def behind(self, seconds: Callable[[int], float]) -> int:
        """Return how many episodes could be brought back elsewhere; see `movable`."""
        return len(self._movable(seconds))

    def _movable(self, seconds: Callable[[int], float]) -> list[int]:
        running = next(iter(self.sent.values()), None)
        waited = time.monotonic() - self.since
        others = dict.fromkeys(each.episode for each in self.open_calls())
        return [one for one in others if (running is None or one != running.episode) and seconds(one) <= waited]

    def release(self, episode: int) -> list[StageCall]:
        """Give up an episode that has not the process; returns its calls that have no answer.

        What the worker was sent already it will do, and nobody will hear of it.
        """
        own = [each for each in self.open_calls() if each.episode == episode]
        new = any(each.method == "reset" for each in self.queued if each.episode == episode)
        self.queued = deque(each for each in self.queued if each.episode != episode)
        for number, each in self.sent.items():
            if each.episode == episode:
                self.sent[number] = StageCall(episode, "close", (), answered=True)
        self.episodes.pop(episode, None)
        if not new:
            self.queued.append(StageCall(episode, "close", (), answered=True))
        return own


def end(slots: dict[Hashable, Slot], starter: WorkerStarter) -> None:
    """End the workers, those that have nothing to do by themselves, the others at once; then what began them."""
    end_workers((slot.process, slot.ready and not slot.sent) for slot in slots.values())
    slots.clear()
    starter.close()


def unlike(each: StageCall, found: object) -> Failure:
    """Return the failure of an environment that, brought back, answers `each` with `found`."""
    before, now = (repr(getattr(x, "observation", x))[:120] for x in (each.known, found))
    return Failure(
        f"it is not reproducible: made anew with the same seed and actions, {each.method}() gave {now} where it had "
        f"given {before}. Draw all chance from the seed",
        "",
        "error",
    )
