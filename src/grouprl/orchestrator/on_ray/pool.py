"""Workers of one kind: called, watched, and replaced when they are lost, with their work repeated.

Each call gets one answer: when a worker is lost, all its unanswered calls are lost, whatever it did for them, and each
caller is told. Later answers of a lost worker are ignored.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grouprl.core.errors import RunError
from grouprl.orchestrator.on_ray.worker_host import PRESENT, Kind, Ticket, WorkerHost, WorkerLost

LOOK_SECONDS = 1.0
"""Seconds between two checks of the deadlines of calls."""
REMEDY = "The files of the run are intact: continue with --resume"


@dataclass(frozen=True)
class PoolLimits:
    """Time limits and the allowed number of restarts; see `grouprl.config.sections.Placing`."""

    timeout: float = 3600.0
    start_timeout: float = 300.0
    restarts: int = 3


@dataclass(eq=False)
class PlacedCall:
    """A call of a worker; once it is `over`, it has a `value` or is `lost`."""

    number: int
    """The number of the worker."""
    method: str
    deadline: float
    ticket: Ticket
    value: object = None
    over: bool = False
    lost: bool = False


@dataclass(frozen=True)
class PlacedJob:
    """A piece of work: a method, and a function that makes its arguments for the current life of the worker."""

    method: str
    arguments: Callable[[int], tuple[object, ...]]
    """Makes the arguments from the worker's life, which counts from 1 and grows with each replacement."""
    number: int | None = None
    """The number of the worker that does it; None: any free worker."""


@dataclass(eq=False)
class _Seat:
    worker: object
    life: int
    presence: PlacedCall
    """The first call, whose answer shows that the worker has started."""


class WorkerPool:
    """`count` workers of a kind, started when they are first needed; `say` shows a sentence to the user."""

    def __init__(
        self, host: WorkerHost, kind: Kind, count: int, limits: PoolLimits, say: Callable[[str], None]
    ) -> None:
        self.host, self.kind, self.count, self.limits, self.say = host, kind, count, limits, say
        self.restarted = 0
        """The number of workers replaced so far."""
        self.redone = 0
        """The number of calls repeated so far because their worker was lost."""
        self.pids: dict[int, int] = {}
        """By worker number: the process id of each worker that has started."""
        self._seats: dict[int, _Seat] = {}
        self._calls: list[PlacedCall] = []
        self._losses = dict.fromkeys(range(count), 0)

    def life(self, number: int) -> int:
        """Return how many workers have had this number, counted from 1; start the worker if it is not running yet."""
        return self._seat(number).life

    def start(self) -> None:
        """Begin to start every worker that is not running."""
        for number in range(self.count):
            self._seat(number)

    def send(self, number: int, method: str, *arguments: object) -> PlacedCall:
        """Begin a call of worker `number`."""
        seat = self._seat(number)
        # A call to a worker that has not started waits for its start, too.
        grace = 0.0 if seat.presence.over else self.limits.start_timeout
        deadline = time.monotonic() + self.limits.timeout + grace
        call = PlacedCall(number, method, deadline, self.host.call(seat.worker, method, arguments))
        self._calls.append(call)
        return call

    def wait(self, seconds: float | None = None) -> list[PlacedCall]:
        """Return the calls that ended since the last call of this method, after waiting at most `seconds` for one.

        Raises:
            RunError: a worker failed, or was lost too often in a row.
            InputError: a worker refused its input.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while self._calls:
            left = LOOK_SECONDS if until is None else max(0.0, min(LOOK_SECONDS, until - time.monotonic()))
            calls = {call.ticket: call for call in self._calls}
            over = [calls[ticket] for ticket in self.host.ready(list(calls), left)]
            found = [call for each in over if not each.over for call in self._end(each)]
            found += [call for each in self._overdue() for call in self._lose(each.number, _hung(each))]
            if found := [call for call in found if call.method != PRESENT]:
                return found
            if until is not None and time.monotonic() >= until:
                return []
        return []

    def run(self, jobs: Sequence[PlacedJob]) -> list[object]:
        """Return the results of `jobs` in order, repeating the jobs of lost workers."""
        own: dict[int, deque[int]] = {number: deque() for number in range(self.count)}
        anyone: deque[int] = deque()
        for place, job in enumerate(jobs):
            (anyone if job.number is None else own[job.number]).append(place)
        found: dict[int, object] = {}
        going: dict[PlacedCall, int] = {}
        try:
            while len(found) < len(jobs):
                busy = {call.number for call in going}
                for number in sorted(set(own) - busy):
                    queue = own[number] or anyone
                    if queue:
                        place = queue.popleft()
                        arguments = jobs[place].arguments(self.life(number))
                        going[self.send(number, jobs[place].method, *arguments)] = place
                for call in self.wait():
                    place = going.pop(call)
                    if not call.lost:
                        found[place] = call.value
                    else:
                        self.redone += 1
                        (anyone if jobs[place].number is None else own[call.number]).appendleft(place)
        finally:
            self.forget(list(going))
        return [found[place] for place in range(len(jobs))]

    def forget(self, calls: Sequence[PlacedCall]) -> None:
        """Ignore these calls from now on and discard their results."""
        for call in calls:
            if call in self._calls:
                self._calls.remove(call)

    def close(self) -> None:
        """End the workers; may be called twice."""
        for seat in self._seats.values():
            self.host.end(seat.worker)
        self._seats.clear()
        self._calls.clear()
        self.pids.clear()

    # ------------------------------------------------------------------------------------------------ workers

    def _seat(self, number: int) -> _Seat:
        return self._seats[number] if number in self._seats else self._fill(number, 1)

    def _fill(self, number: int, life: int) -> _Seat:
        worker = self.host.start(self.kind, number)
        deadline = time.monotonic() + self.limits.start_timeout
        presence = PlacedCall(number, PRESENT, deadline, self.host.call(worker, PRESENT, ()))
        self._calls.append(presence)
        self._seats[number] = _Seat(worker, life, presence)
        return self._seats[number]

    def _overdue(self) -> list[PlacedCall]:
        now = time.monotonic()
        late = [call for call in self._calls if now > call.deadline]
        # Losing a worker ends all its calls, so one of them is enough; the earliest names the cause.
        return list({call.number: call for call in reversed(late)}.values())

    def _end(self, call: PlacedCall) -> list[PlacedCall]:
        """Record that a call has ended; return it, or all calls of a worker that is lost."""
        try:
            reply = self.host.reply(call.ticket)
        except WorkerLost as error:
            return self._lose(call.number, str(error))
        self._calls.remove(call)
        call.value, call.over = reply.taken(f"{self.kind} {call.number}"), True
        if call.method == PRESENT:
            self.pids[call.number] = int(str(call.value))
        else:  # a worker that starts well and then dies of its work again and again is not replaced for ever
            self._losses[call.number] = 0
        return [call]

    def _lose(self, number: int, why: str) -> list[PlacedCall]:
        """Replace a worker; return the calls that are lost with it."""
        seat = self._seats[number]
        gone = [call for call in self._calls if call.number == number]
        for call in gone:
            self._calls.remove(call)
            call.over = call.lost = True
        self.host.end(seat.worker)
        self.pids.pop(number, None)
        self._losses[number] += 1
        if self._losses[number] > self.limits.restarts:
            raise RunError(
                f"{self.kind} {number} of the cluster was lost {self._losses[number]} times in a row (cluster.restarts "
                f"is {self.limits.restarts}); the last time: {why}. {REMEDY}"
            )
        self.restarted += 1
        self.say(f"{self.kind} {number} was lost ({why}): a replacement starts and repeats its work")
        self._fill(number, seat.life + 1)
        return gone


def _hung(call: PlacedCall) -> str:
    if call.method == PRESENT:
        return "it was not placed or did not start within cluster.start_timeout"
    return "it did not answer within cluster.timeout"
