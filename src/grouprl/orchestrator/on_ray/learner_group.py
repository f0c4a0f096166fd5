"""The learners of a run on a cluster: started together, watched, and restarted together when one is lost.

Ranks depend on each other: when one is lost, its part of a step's sums is lost as well. So the other ranks are ended,
and all continue from the newest checkpoint on the nodes that remain.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from grouprl.core.errors import GrouprlError, RunError
from grouprl.orchestrator.on_ray.learner_node import LEAVING, LearnerPlace, LearnerState
from grouprl.orchestrator.on_ray.pool import REMEDY
from grouprl.orchestrator.on_ray.worker_host import Ticket, WorkerHost, WorkerLost
from grouprl.processes.liveness import RUN_FAILED

LEASE = 20.0
"""Seconds after which a learner ends by itself if no message reaches it."""
SILENT = 30.0
"""Seconds within which a learner's actor must answer; its calls take almost no time."""
TOLD = 10.0
"""Seconds that rank 0 may take to report the loss of another rank, or the others to end after rank 0."""
TELLING = 1.0
"""Seconds that a call may take to reach its actor."""
POLL = 0.2
Write = Callable[[int, bytes, bytes], None]
"""Function that shows what a rank wrote to stdout and to stderr."""


class LearnerLost(Exception):
    """A learner is lost; the text says which one, and why."""

    def __init__(self, rank: int, why: str) -> None:
        self.rank, self.why = rank, why
        super().__init__(f"learner {rank} was lost ({why})")


class Stopping(Exception):
    """A signal arrived before there was a run to pass it on to."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


@dataclass(frozen=True)
class GroupEnd:
    """The end of a group: the exit code of the run, or the reason why a learner was lost."""

    code: int | None
    why: str = ""


@dataclass(frozen=True)
class GroupSettings:
    """The number of learners, the seconds that they may take to start, and the limit on restarts."""

    count: int
    start_timeout: float
    restarts: int


class LearnerGroup:
    """One start of all learners of a run; `signals` are passed on to rank 0, and `write` shows the ranks' output."""

    def __init__(self, host: WorkerHost, settings: GroupSettings, signals: deque[int], write: Write) -> None:
        self._host, self._settings, self._signals, self._write = host, settings, signals, write
        self._actors = [host.start("learner", rank) for rank in range(settings.count)]
        self._passed: set[int] = set()
        self._leaving = 0.0
        self._asked = time.monotonic()
        """The time of the last call to the learners."""

    def run(self, arguments: Sequence[str], variables: Mapping[str, str]) -> GroupEnd:
        """Start `grouprl` with these arguments on all ranks, and watch it until it ends."""
        try:
            places = cast("list[LearnerPlace]", self._each("place", [()] * self._settings.count))
            told = [(list(arguments), dict(variables) | own) for own in ranks_at(places)]
            self._each("begin", told)
            end = self._watched()
            self._leaving = LEAVING if end.code is not None else 0.0
            return end
        except LearnerLost as lost:
            return GroupEnd(None, str(lost))
        except Stopping as stopping:
            return GroupEnd(128 + stopping.number)

    def end(self) -> None:
        """End every learner, and wait for those that may still run out of reach.

        Without its head node the cluster starts no new learners, so nothing is waited for beyond sending the calls.
        """
        calls = []
        for actor in self._actors:
            with suppress(Exception):
                calls.append(self._host.call(actor, "end", (self._leaving,)))
        try:
            heard = self._heard(calls)
        except GrouprlError:
            time.sleep(TELLING)
            return
        for actor in self._actors:
            self._host.end(actor)
        if heard < len(self._actors):
            time.sleep(max(0.0, self._asked + LEASE + 1.0 - time.monotonic()))

    def _heard(self, calls: list[Ticket]) -> int:
        """Return the number of learners that are known to have ended."""
        over, until = 0, time.monotonic() + 2 * LEAVING
        while calls and time.monotonic() < until:
            for call in self._host.ready(calls, POLL):
                calls.remove(call)
                try:
                    self._host.reply(call)
                    over += 1
                except WorkerLost as error:  # with its process a learner ends; on a lost node it may survive
                    over += "node" not in str(error)
        return over

    def _each(self, method: str, arguments: Sequence[tuple[object, ...]]) -> list[object]:
        """Return the result of a method of every learner."""
        self._asked = time.monotonic()
        pairs = zip(self._actors, arguments, strict=True)
        calls = {self._host.call(actor, method, given): rank for rank, (actor, given) in enumerate(pairs)}
        found: dict[int, object] = {}
        until = time.monotonic() + self._settings.start_timeout
        while len(found) < len(self._actors):
            if self._signals:
                raise Stopping(self._signals.popleft())
            for call in self._host.ready(list(calls), POLL):
                rank = calls.pop(call)
                found[rank] = self._value(rank, call)
            if calls and time.monotonic() > until:
                why = "it was not placed or did not start within cluster.start_timeout"
                raise LearnerLost(min(calls.values()), why)
        return [found[rank] for rank in range(len(self._actors))]

    def _value(self, rank: int, call: Ticket) -> object:
        try:
            return self._host.reply(call).taken(f"learner {rank}")
        except WorkerLost as error:
            raise LearnerLost(rank, str(error)) from error

    def _watched(self) -> GroupEnd:
        """Show the learners' output until the outcome of the run is clear."""
        codes: dict[int, int] = {}
        since = time.monotonic()
        for rank, state in self._states():
            self._write(rank, state.out, state.err)
            self._pass_on()
            if state.code is not None and rank not in codes:
                since = time.monotonic() if not codes else since
                codes[rank] = state.code
            waited = time.monotonic() - since if codes else 0.0
            found = verdict(codes, self._settings.count, waited, self._passed)
            if found is not None:
                return found
        raise AssertionError("learners are watched until they end")

    def _states(self) -> Iterator[tuple[int, LearnerState]]:
        """Yield each learner's number and state, again and again until the learner has ended."""
        calls: dict[Ticket, tuple[int, float]] = {}
        waiting = list(range(len(self._actors)))
        while True:
            now = time.monotonic()
            for rank in waiting:
                calls[self._host.call(self._actors[rank], "poll", (POLL,))] = (rank, now)
            waiting = []
            for call in self._host.ready(list(calls), POLL):
                rank, asked = calls.pop(call)
                self._asked = max(self._asked, asked)
                state = cast("LearnerState", self._value(rank, call))
                waiting += [rank] * (state.code is None)
                yield rank, state
            for rank, asked in calls.values():
                if time.monotonic() - asked > SILENT:
                    raise LearnerLost(rank, f"it did not answer for {SILENT:g} s")

    def _pass_on(self) -> None:
        while self._signals:
            number = self._signals.popleft()
            self._passed.add(number)
            call = self._host.call(self._actors[0], "signal", (number,))
            if not self._host.ready([call], LEASE / 2):  # the others hear nothing meanwhile, and end after LEASE
                self._signals.appendleft(number)
                raise LearnerLost(0, f"it did not answer to signal {number}")
            self._value(0, call)


def verdict(codes: Mapping[int, int], count: int, waited: float, passed: set[int]) -> GroupEnd | None:
    """Return the outcome of `count` ranks, of which some have ended with `codes`, the first `waited` seconds ago.

    `passed` are the signals that rank 0 was sent. None means that the outcome is not clear yet.
    """
    leader = codes.get(0)
    failed = [rank for rank, code in sorted(codes.items()) if rank and code]
    if leader is None:
        return _lost(failed[0], codes) if failed and waited > TOLD else None
    if leader < 0:
        return GroupEnd(128 - leader) if -leader in passed else _lost(0, codes)
    if leader != RUN_FAILED:
        return GroupEnd(leader)
    if failed:
        return _lost(failed[0], codes)
    if len(codes) == count:
        return GroupEnd(leader)
    missing = min(set(range(count)) - set(codes))
    return GroupEnd(None, f"learner {missing} was lost (it hung)") if waited > TOLD else None


def _lost(rank: int, codes: Mapping[int, int]) -> GroupEnd:
    code = codes[rank]
    how = f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"
    return GroupEnd(None, f"learner {rank} was lost ({how})")


def ranks_at(places: Sequence[LearnerPlace]) -> Iterator[dict[str, str]]:
    """Yield the variables that tell each rank its number and the address of rank 0, as torchrun sets them.

    LOCAL_RANK is always 0, because Ray shows each rank only its own GPUs.
    """
    shared = {
        "MASTER_ADDR": places[0].address,
        "MASTER_PORT": str(places[0].port),
        "WORLD_SIZE": str(len(places)),
    }
    homes = [(place.machine, place.address) for place in places]
    for rank, home in enumerate(homes):
        own = {"RANK": rank, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": homes.count(home)}
        yield shared | {name: str(value) for name, value in own.items()}


def kept_alive(
    attempt: Callable[[], GroupEnd], folder: Path, restarts: int, say: Callable[[str], None], signals: deque[int]
) -> int:
    """Attempt a run until it ends by itself; return its exit code.

    Raises:
        RunError: learners were lost more than `restarts` times without a further checkpoint of the run in `folder`.
    """
    lost, before = 0, checkpoints(folder)
    while (end := attempt()).code is None:
        now = checkpoints(folder)
        lost, before = (1 if now != before else lost + 1), now
        if lost > restarts:
            raise RunError(
                f"{end.why}: {lost} losses without a further checkpoint (cluster.restarts is {restarts}). {REMEDY}"
            )
        if signals:
            return 128 + signals.popleft()
        count = "from the newest checkpoint" if now else "from the start, as there is no checkpoint yet"
        say(f"{end.why}: the learners start again {count}")
    return end.code


def checkpoints(folder: Path) -> frozenset[str]:
    """Return the names of a run's checkpoints."""
    return frozenset(path.name for path in (folder / "checkpoints").glob("*") if (path / "manifest.json").is_file())
