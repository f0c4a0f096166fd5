"""Rewards in worker processes: time per completion, memory limits, and a new worker for one that hangs or dies."""

from __future__ import annotations

import inspect
import math
import os
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

from grouprl.core.errors import InputError, RunError
from grouprl.processes.frames import BadReply
from grouprl.processes.parcel import CannotSend, pack
from grouprl.processes.worker_process import (
    LONGEST_WAIT,
    START_SECONDS,
    WorkerProcess,
    WorkerSpec,
    end_workers,
    wait_for_any,
)
from grouprl.records.scores import FAILED, Status
from grouprl.rewards.builtin import math_equal, regex_format
from grouprl.rewards.code import passes_tests
from grouprl.rewards.contract import Columns, Reward, overdue, reward_name, takes_batch
from grouprl.rewards.reward_worker import serve
from grouprl.rewards.validation import Verdict, VerdictReward, one_by_one, plain_rewards

Mode = Literal["each", "concurrent", "whole"]
MOST_WORKERS = 8
"""So many at most where the number is left to `auto`."""
FAILED_STARTS = 3
"""So many workers in a row that cannot start end the run."""
IN_A_ROW = 32
"""So many completions in a row that end their worker: the rest of the batch is not tried any more."""
LARGEST_CHUNK = 32


class _DiesOnExamples(RunError):
    """A worker had imported the reward, but did not survive the reward's own examples."""


@dataclass
class _Job:
    """Completions that a worker scores: their rows in the batch, and which places of the job are still open."""

    mode: Mode
    rows: list[int]
    open: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open = list(range(len(self.rows)))

    @property
    def open_rows(self) -> list[int]:
        """Rows without a verdict."""
        return [self.rows[place] for place in self.open]


@dataclass
class _WorkerSlot:
    """A worker and what it is doing; `deadline` is when it is given up."""

    process: WorkerProcess
    deadline: float
    loaded: bool = False
    ready: bool = False
    job: _Job | None = None
    number: int = 0


class _Batch:
    """The completions of one call: all of them, those that wait, and the verdicts so far."""

    def __init__(
        self, inputs: tuple[Sequence[str], Sequence[Columns], Sequence[str]], rest: tuple[object, ...]
    ) -> None:
        self.inputs, self.rest = inputs, rest
        self.waiting: deque[_Job] = deque()
        self.verdicts: dict[int, Verdict] = {}
        self.again: set[int] = set()
        self.losses = 0

    def request(self, number: int, job: _Job, timeout: float) -> bytes:
        """Return the message that hands a job to a worker."""
        completions, columns, ids = ([values[row] for row in job.rows] for values in self.inputs)
        try:
            return pickle.dumps((number, job.mode, completions, columns, ids, *self.rest, timeout))
        except Exception as error:  # pickling runs the code of the objects it meets
            raise InputError(
                f"The columns of sample {ids[0]} or one after it cannot be sent to a worker process: {error}",
                "a worker receives them pickled",
                "Keep plain data in the columns, or set reward.workers to 0.",
            ) from error

    def fail(self, rows: Sequence[int], verdict: Verdict) -> None:
        """Give the same verdict to several rows."""
        self.verdicts |= dict.fromkeys(rows, verdict)


class RewardWorkers(VerdictReward):
    """A reward that runs in worker processes, usable wherever a reward is; `close` ends them.

    A completion on which the reward hangs or dies ends its worker and fails with evidence: where the reward was, and
    what the worker printed last. The others are scored by another worker. A reward that takes the whole batch
    in one call has `timeout` seconds per completion for all of them together, and fails on all of them.
    Verdicts do not depend on the number of workers, unless the reward itself remembers earlier completions.
    """

    def __init__(self, reward: Reward, count: int, *, timeout: float, memory_gb: float) -> None:
        """Start `count` workers and wait for the first to be ready.

        Raises:
            CannotSend: if the reward cannot be found or imported by another process.
            InputError: on no workers, or if the reward hangs or dies on its own examples.
        """
        if count < 1:
            raise InputError(f"A reward got {count} workers", "there is at least one")
        self.__name__ = reward_name(reward)
        self.examples = getattr(reward, "examples", ())
        self.count, self.timeout = count, timeout
        self._mode: Mode = "each"
        if not one_by_one(reward):
            self._mode = "whole" if any(map(takes_batch, plain_rewards(reward))) else "concurrent"
        self._async_clock = timeout * (1 + len(plain_rewards(reward)))
        warm_up = [([e.completion], [e.columns], ["example"]) for e in self.examples]
        self._spec = WorkerSpec(serve, (pack(reward, "reward"), warm_up), int(memory_gb * 2**30))
        self._failed_starts, self._number = 0, 0
        self._lock = threading.Lock()
        self._slots: list[_WorkerSlot] = []
        self._end = weakref.finalize(self, _end, self._slots)
        try:
            self._fill_up()
            self._await_first()
        except RunError as error:
            self.close()
            if isinstance(error, _DiesOnExamples):
                raise InputError(str(error), "a reward is tried on its own examples before it is trusted") from error
            raise CannotSend(str(error)) from error

    def close(self) -> None:
        """End the workers; nothing is left of them afterwards."""
        self._end()

    def verdicts(
        self,
        completions: Sequence[str],
        columns: Sequence[Columns],
        ids: Sequence[str],
        weights: Mapping[str, float] | None = None,
        correct_at: float = 1.0,
        timeout: float | None = None,
    ) -> list[Verdict]:
        """Return the checked outcome of every sample, in their order; `timeout` replaces the workers' own.

        Raises:
            InputError: if a column the reward needs is absent, or a column cannot be sent.
            RunError: if no worker can be started any more.
        """
        if not self._end.alive:
            raise RunError(f"The workers of the reward '{self.__name__}' are closed")
        batch = _Batch((completions, columns, ids), (weights, correct_at))
        batch.waiting.extend(self._jobs(len(completions)))
        with self._lock:
            self._finish(batch, self.timeout if timeout is None else timeout)
        return [batch.verdicts[row] for row in range(len(completions))]

    def _finish(self, batch: _Batch, limit: float) -> None:
        try:
            while len(batch.verdicts) < len(batch.inputs[0]):
                self._fill_up()
                self._hand_out(batch, limit)
                self._wait()
                for slot in list(self._slots):
                    self._attend(slot, batch, limit)
        except BaseException:
            for slot in [slot for slot in self._slots if slot.job is not None]:
                self._remove(slot)
            raise

    def _jobs(self, count: int) -> list[_Job]:
        size = count
        if self._mode == "concurrent":
            size = math.ceil(count / self.count)
        elif self._mode == "each":
            size = min(LARGEST_CHUNK, math.ceil(count / (4 * self.count)))
        rows = range(count)
        return [_Job(self._mode, list(rows[i : i + size])) for i in range(0, count, max(1, size))]

    def _fill_up(self) -> None:
        while len(self._slots) < self.count:
            try:
                process = WorkerProcess(self._spec)
            except OSError as error:  # too many open files, no memory for another process
                raise RunError(f"No worker process for the reward '{self.__name__}' can be started: {error}") from error
            self._slots.append(_WorkerSlot(process, time.monotonic() + START_SECONDS))

    def _await_first(self) -> None:
        nothing = _Batch(((), (), ()), ())
        while not any(slot.ready for slot in self._slots):
            self._wait()
            for slot in list(self._slots):
                self._attend(slot, nothing, self.timeout, starts=1)

    def _hand_out(self, batch: _Batch, limit: float) -> None:
        for slot in self._slots:
            if batch.waiting and slot.ready and slot.job is None:
                self._number += 1
                job = batch.waiting.popleft()
                slot.number, slot.process.printed = self._number, b""
                slot.process.send(batch.request(self._number, job, limit))
                slot.job, slot.deadline = job, time.monotonic() + self._clock(job, limit)

    def _clock(self, job: _Job, limit: float) -> float:
        if job.mode == "whole":
            return limit * len(job.rows)
        return limit if job.mode == "each" else self._async_clock * limit / self.timeout

    def _wait(self) -> None:
        """Sleep until a worker has something to say, can take more, or must be given up."""
        left = min(slot.deadline for slot in self._slots) - time.monotonic()
        wait_for_any([slot.process for slot in self._slots], min(left, LONGEST_WAIT))

    def _attend(self, slot: _WorkerSlot, batch: _Batch, limit: float, starts: int = FAILED_STARTS) -> None:
        """Take what a worker has said; replace it if it has died, hangs or talks nonsense."""
        process, ended = slot.process, slot.process.ended()
        try:
            for reply in process.hear():
                self._take(slot, reply, batch, limit)
        except BadReply as error:
            self._lose(slot, batch, "error", f"the reward's process sent no verdict: {error}", starts)
            return
        if ended:
            self._lose(slot, batch, "error", f"the reward's process {process.how_it_ended()}", starts)
        elif time.monotonic() > slot.deadline:
            process.say_where()
            self._lose(slot, batch, "timeout", overdue(limit), starts)

    def _take(self, slot: _WorkerSlot, reply: list[object], batch: _Batch, limit: float) -> None:
        kind, *values = reply
        if kind == "loaded":
            slot.loaded = True
        elif kind == "ready":
            slot.ready, slot.deadline, self._failed_starts = True, math.inf, 0
        elif kind == "refused" and len(values) == 4:
            raise InputError(*map(str, values[1:]))
        elif kind == "verdict" and slot.job is not None and values[:1] == [slot.number]:
            self._note(slot, slot.job, values[1:], batch, limit)
        else:
            raise BadReply(repr(reply)[:60])

    def _note(self, slot: _WorkerSlot, job: _Job, values: list[object], batch: _Batch, limit: float) -> None:
        place, verdict = read_verdict(values)
        if place not in job.open:
            raise BadReply(f"a second verdict on completion {place}")
        if verdict.status in FAILED:
            slot.process.read_output()
            verdict = replace(verdict, trace=_evidence(verdict.trace, slot.process.printed))
        job.open.remove(place)
        row = job.rows[place]
        if job.mode == "each" and verdict.status == "timeout" and row not in batch.again:
            batch.again.add(row)  # the machine was crowded: when the others are done it may be less so
            batch.waiting.append(_Job("each", [row]))
        else:
            batch.verdicts[row] = verdict
        batch.losses = 0
        slot.deadline = slot.deadline if job.mode != "each" else time.monotonic() + limit
        if not job.open:
            slot.job, slot.deadline = None, math.inf

    def _lose(self, slot: _WorkerSlot, batch: _Batch, status: Status, what: str, starts: int) -> None:
        """End a worker; count what it was scoring as failed, or let others score it."""
        self._remove(slot)
        trace = _evidence("", slot.process.printed)
        if not slot.ready:
            self._failed_starts += 1
            if self._failed_starts >= starts:
                why = what if status != "timeout" else f"it was not ready after {START_SECONDS:g} s"
                kind = _DiesOnExamples if slot.loaded else RunError
                raise kind(f"No worker process for the reward '{self.__name__}' could be started: {why}. {trace}")
        if slot.job is None:
            return
        rows, batch.losses = slot.job.open_rows, batch.losses + 1
        failed = Verdict(status, what=what, trace=trace)
        if slot.job.mode == "whole":
            batch.fail(rows, failed)
        elif slot.job.mode == "each":
            batch.fail(rows[:1], failed)
            batch.waiting.extendleft([_Job("each", rows[1:])] if rows[1:] else [])
        else:  # which of those awaited together is to blame shows when each has a worker for itself
            batch.waiting.extendleft(_Job("each", [row]) for row in reversed(rows))
        if batch.losses >= IN_A_ROW:
            given_up = Verdict(
                status, what=f"not scored, after {IN_A_ROW} completions in a row of which each ended its worker"
            )
            batch.fail([row for job in batch.waiting for row in job.rows], given_up)
            batch.waiting.clear()

    def _remove(self, slot: _WorkerSlot) -> None:
        self._slots.remove(slot)
        slot.process.kill()


def in_workers(
    reward: Reward, workers: int | Literal["auto"], *, timeout: float, memory_gb: float
) -> tuple[Reward, str]:
    """Return the reward to score with, and in words why it is not in workers although it should be ("" otherwise).

    Args:
        reward: any form of the contract.
        workers: how many processes; 0 for this process; "auto" for this process if the reward consists of this
            package's own functions that always end, else for one worker per core.
        timeout: seconds per completion.
        memory_gb: memory of each worker, in GiB.

    Raises:
        CannotSend: if a number of workers is given and the reward cannot be sent to them.
    """
    if workers == 0 or (workers == "auto" and harmless(reward)):
        return reward, ""
    try:
        if os.name != "posix":
            raise CannotSend("This system has no process groups", "workers need them to be stopped with their children")
        count = min(MOST_WORKERS, _cores()) if workers == "auto" else workers
        return RewardWorkers(reward, count, timeout=timeout, memory_gb=memory_gb), ""
    except CannotSend as error:
        if workers != "auto":
            raise
        return reward, f"{error} It runs in this process: reward.timeout does not hold and a hang stops the run."


def harmless(reward: Reward) -> bool:
    """Whether a reward consists of this package's own functions that end on every text, within microseconds."""
    return all(_harmless(plain) for plain in plain_rewards(reward))


def _harmless(reward: Reward) -> bool:
    if isinstance(reward, partial):
        return reward.func is not regex_format and _harmless(reward.func)
    own = inspect.isfunction(reward) and reward.__module__.startswith("grouprl.")
    return own and reward not in (math_equal, passes_tests)


def read_verdict(values: list[Any]) -> tuple[int, Verdict]:
    """Return the place and the verdict that a reply states.

    Raises:
        BadReply: it is not one.
    """
    if len(values) != 8:
        raise BadReply(repr(values)[:60])
    place, status, reward, components, correct, what, trace, graded = values
    sound = (
        isinstance(place, int)
        and status in get_args(Status)
        and isinstance(reward, float)
        and math.isfinite(reward) == (status == "ok")
        and isinstance(components, dict)
        and all(isinstance(number, float) for number in components.values())
        and isinstance(correct, bool)
        and isinstance(what, str)
        and isinstance(trace, str)
        and isinstance(graded, bool)
    )
    if not sound:
        raise BadReply(repr(values)[:60])
    return place, Verdict(status, reward, components, correct, what, trace, graded=graded)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end(slots: list[_WorkerSlot]) -> None:
    end_workers((slot.process, slot.job is None and slot.ready) for slot in slots)
    slots.clear()


def _evidence(trace: str, printed: bytes) -> str:
    output = printed.decode(errors="replace").strip()
    return f"{trace}\nlast output of the reward's process:\n{output}".strip() if output else trace
