"""Environments on a cluster: each episode stays with one worker, and another worker restores it if that one is lost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from grouprl.config.sections import Acting
from grouprl.envs.call_times import CallTimes
from grouprl.envs.environment_pool import AnsweringStage, Call
from grouprl.envs.environment_pool_choice import open_stage
from grouprl.envs.environment_pool_slots import StageCall, unlike
from grouprl.orchestrator.on_ray.pool import PlacedCall, WorkerPool
from grouprl.orchestrator.on_ray.reward import PlacedParcel
from grouprl.processes.parcel import pack, unpack
from grouprl.rewards.contract import Failure
from grouprl.tasks.task import Task

TURN_SECONDS = 0.05
"""Seconds that a worker waits for an answer before it replies without one; it takes no other calls while it waits."""
Journal = Sequence[tuple[int, Sequence[StageCall]]]
"""Episodes, and their answered calls in order."""


def stage_hello(task: Task, settings: Acting) -> PlacedParcel:
    """Return the setup of a worker that runs environments.

    Raises:
        CannotSend: the task cannot be found or pickled for another process.
    """
    return PlacedParcel(pack(task, "task"), settings.workers, settings.timeout, settings.memory_gb)


@dataclass(eq=False)
class _Place:
    """The pending work of one worker of the pool, and the episodes that it holds."""

    waiting: deque[StageCall] = field(default_factory=deque)
    sent: dict[int, StageCall] = field(default_factory=dict)
    """By episode: calls that were sent to the worker and are not answered yet."""
    episodes: dict[int, None] = field(default_factory=dict)
    lost: dict[int, None] = field(default_factory=dict)
    """Episodes of the worker's predecessor, which are to be restored."""
    turn: PlacedCall | None = None


class PlacedStage(AnsweringStage):
    """The environments of a task on the workers of a pool, for use wherever an environment pool is.

    An episode stays with the worker that had the fewest episodes when it began. The answered calls of each episode are
    kept: when a worker is lost, its replacement makes the environments again and repeats these calls.
    """

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__()
        self.pool = pool
        self._places = {number: _Place() for number in range(pool.count)}
        self._home: dict[int, int] = {}
        self._journal: dict[int, list[StageCall]] = {}

    def send(self, method: str, calls: Sequence[Call]) -> None:
        """Begin calls for different episodes."""
        for episode, arguments in calls:
            if method == "close" and episode not in self._home:
                self._answers[episode] = None
                continue
            if episode not in self._home:
                self._home[episode] = min(self._places, key=lambda number: len(self._places[number].episodes))
            place = self._places[self._home[episode]]
            place.episodes[episode] = None
            place.waiting.append(StageCall(episode, method, arguments))
        for number in self._places:
            self._feed(number)

    def clear(self) -> None:
        """Close every remaining environment without waiting for pending answers."""
        for number, place in self._places.items():
            self.pool.forget([place.turn] if place.turn is not None else [])
            if place.episodes:
                self.pool.forget([self.pool.send(number, "clear")])
            self._places[number] = _Place()
        for held in (self._home, self._journal, self._answers):
            held.clear()

    def close(self) -> None:
        """End the workers; a later call starts new ones."""
        self.pool.close()
        self._places = {number: _Place() for number in range(self.pool.count)}
        for held in (self._home, self._journal, self._answers):
            held.clear()

    def _feed(self, number: int) -> None:
        """Give a worker its next turn, if it has none and has work to do."""
        place = self._places[number]
        if place.turn is not None or not (place.waiting or place.sent):
            return
        again = [(episode, self._journal.get(episode, ())) for episode in place.lost]
        calls = list(place.waiting)
        place.waiting.clear()
        place.lost.clear()
        place.sent |= {each.episode: each for each in calls}
        place.turn = self.pool.send(number, "turn", again, calls, TURN_SECONDS)

    def _pump(self, seconds: float | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        before = len(self._answers)
        while any(place.turn is not None for place in self._places.values()):
            for call in self.pool.wait(None if until is None else max(0.0, until - time.monotonic())):
                self._take(call)
                self._feed(call.number)
            if len(self._answers) > before or (until is not None and time.monotonic() >= until):
                return

    def _take(self, call: PlacedCall) -> None:
        """Take the answers of a turn; if the worker was lost, put its calls back to be repeated."""
        place = self._places[call.number]
        if place.turn is not call:
            return
        place.turn = None
        if call.lost:
            self.pool.redone += len(place.sent)
            place.waiting.extendleft(reversed(place.sent.values()))
            place.sent.clear()
            place.lost = dict(place.episodes)
            return
        answers, times = cast("tuple[list[tuple[int, object]], CallTimes]", call.value)
        self.times.add_all(times)
        for episode, found in answers:
            self._note(place, place.sent.pop(episode), found)

    def _note(self, place: _Place, each: StageCall, found: object) -> None:
        """Keep an answer with its call, so that the environment can be restored."""
        self._answers[each.episode] = found
        if each.method == "close":
            place.episodes.pop(each.episode, None)
            self._home.pop(each.episode, None)
            self._journal.pop(each.episode, None)
        elif not isinstance(found, Failure):
            each.known, each.answered = found, True
            self._journal.setdefault(each.episode, []).append(each)


class ActingWorker:
    """Environments in a worker's process, or in child processes of it, as `environment.workers` says."""

    def __init__(self, told: PlacedParcel) -> None:
        task: Task = unpack(told.parcel)
        self.stage, _ = open_stage(task, told.workers, timeout=told.timeout, memory_gb=told.memory_gb)
        self._latest: dict[int, str] = {}
        """By episode: the method that was called last."""
        self._spoilt: dict[int, Failure] = {}
        """Episodes whose restored environment answered differently than before."""

    def turn(
        self, again: Journal, calls: Sequence[StageCall], seconds: float
    ) -> tuple[list[tuple[int, object]], CallTimes]:
        """Restore episodes, begin calls, and return the answers that are ready, with the times of the calls."""
        for episode, before in again:
            self._bring_back(episode, before)
        for each in calls:
            self._latest[each.episode] = each.method
            self.stage.send(each.method, [(each.episode, each.arguments)])
        answers = [(episode, self._told(episode, found)) for episode, found in self.stage.receive(seconds)]
        times, self.stage.times = self.stage.times, CallTimes()
        return answers, times

    def _told(self, episode: int, found: object) -> object:
        """Return an environment's answer, or the failure if its restored episode differs from the original."""
        if self._latest[episode] != "close":
            return self._spoilt.get(episode, found)
        self._spoilt.pop(episode, None)
        del self._latest[episode]
        return found

    def clear(self) -> None:
        """Close every environment."""
        self.stage.clear()
        self._latest.clear()
        self._spoilt.clear()

    def _bring_back(self, episode: int, before: Sequence[StageCall]) -> None:
        for each in before:
            (found,) = self.stage.call(each.method, [(episode, each.arguments)])
            if repr(found) != repr(each.known):
                self._spoilt.setdefault(episode, unlike(each, found))
                return
