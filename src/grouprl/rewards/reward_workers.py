"""Rewards in worker processes, with time and memory limits; a worker that hangs or dies is replaced."""

from __future__ import annotations

import math
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from grouprl.core.errors import InputError, RunError
from grouprl.processes.frames import BadReply
from grouprl.processes.parcel import CannotSend, pack
from grouprl.processes.worker_process import WorkerProcess, WorkerSpec, end_workers
from grouprl.processes.worker_slot import FAILED_STARTS, WorkerLoss, WorkerSlot, wait_for_slots
from grouprl.records.scores import FAILED, Status
from grouprl.rewards.contract import Columns, Reward, overdue, reward_name, takes_batch
from grouprl.rewards.reward_worker import read_verdict, serve
from grouprl.rewards.validation import TERMS, Terms, Verdict, VerdictReward, one_by_one, plain_rewards

Mode = Literal["each", "concurrent", "whole"]
IN_A_ROW = 32
"""If this many completions in a row end their worker, the rest of the batch is given up."""
LARGEST_CHUNK = 32


class _DiesOnExamples(RunError):
    """A worker imported the reward, but died on the reward's own examples."""


@dataclass
class _Job:
    """A job for a worker: the rows of its completions in the batch, and the positions in the job without a verdict."""

    mode: Mode
    rows: list[int]
    open: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open = list(range(len(self.rows)))

    @property
    def open_rows(self) -> list[int]:
        """Rows of the job without a verdict."""
        return [self.rows[place] for place in self.open]


@dataclass(eq=False)
class _Slot(WorkerSlot):
    """A worker and its current job."""

    loaded: bool = False
    job: _Job | None = None
    number: int = 0


class _Batch:
    """The completions of one call of `verdicts`, with the waiting jobs and the verdicts so far."""

    def __init__(
        self, inputs: tuple[Sequence[str], Sequence[Columns], Sequence[str]], terms: Terms, limit: float
    ) -> None:
        self.inputs, self.terms, self.limit = inputs, replace(terms, timeout=limit), limit
        self.waiting: deque[_Job] = deque()
        self.verdicts: dict[int, Verdict] = {}
        self.again: set[int] = set()
        self.losses = 0

    def request(self, number: int, job: _Job) -> bytes:
        """Return the message that gives a job to a worker."""
        completions, columns, ids = ([values[row] for row in job.rows] for values in self.inputs)
        try:
            return pickle.dumps((number, job.mode, completions, columns, ids, self.terms))
        except Exception as error:  # pickling runs the code of the objects it meets
            raise InputError(
                f"The columns of sample {ids[0]} or one after it cannot be sent to a worker process: {error}",
                "a worker receives them by pickle",
                "Keep plain data in the columns, or set reward.workers to 0.",
            ) from error

    def fail(self, rows: Sequence[int], verdict: Verdict) -> None:
        """Give the same verdict to several rows."""
        self.verdicts |= dict.fromkeys(rows, verdict)


class RewardWorkers(VerdictReward):
    """A reward that runs in worker processes, usable wherever a reward is; `close` ends them.

    A completion on which the reward hangs or dies ends its worker and fails, with the reward's stack and the worker's
    last output as evidence; another worker scores the remaining completions. A reward that takes the whole batch in one
    call has `timeout` seconds times the number of completions, and fails on all of them together.
    Verdicts do not depend on the number of workers, unless the reward itself remembers earlier completions.
    """

    def __init__(self, reward: Reward, count: int, *, timeout: float, memory_gb: float) -> None:
        """Start `count` workers and wait for the first to be ready.

        Raises:
            CannotSend: if the reward cannot be found or imported by another process.
            InputError: if `count` is below 1, or the reward hangs or dies on its own examples.
        """
        if count < 1:
            raise InputError(f"{count} reward workers", "at least one is needed", "Set reward.workers to 1 or more")
        self.__name__ = reward_name(reward)
        self.examples = getattr(reward, "examples", ())
        self.count, self.timeout = count, timeout
        self._mode: Mode = "each"
        if not one_by_one(reward):
            self._mode = "whole" if any(map(takes_batch, plain_rewards(reward))) else "concurrent"
        # each async part gives up its own calls after `timeout`; one more `timeout` lets the worker report them
        self._async_clock = timeout * (1 + len(plain_rewards(reward)))
        warm_up = [([e.completion], [e.columns], ["example"]) for e in self.examples]
        self._spec = WorkerSpec(serve, (pack(reward, "reward"), warm_up), int(memory_gb * 2**30))
        self._failed_starts, self._number = 0, 0
        self._lock = threading.Lock()
        self._slots: list[_Slot] = []
        self._end = weakref.finalize(self, _end, self._slots)
        try:
            self._fill_up()
            self._await_first()
        except RunError as error:
            self.close()
            if isinstance(error, _DiesOnExamples):
                raise InputError(
                    str(error), "a reward must pass its own examples before it is used", "Correct it"
                ) from error
            raise CannotSend(str(error)) from error

    def close(self) -> None:
        """End all worker processes."""
        self._end()

    def verdicts(
        self, completions: Sequence[str], columns: Sequence[Columns], ids: Sequence[str], terms: Terms = TERMS
    ) -> list[Verdict]:
        """Return the checked outcome of every sample, in order; a `timeout` of the terms overrides the workers'.

        Raises:
            InputError: if a required column is absent, or a column cannot be sent.
            RunError: if no worker can be started.
        """
        if not self._end.alive:
            raise RunError(f"The workers of the reward '{self.__name__}' are closed. Start new ones to score again")
        limit = self.timeout if terms.timeout is None else terms.timeout
        batch = _Batch((completions, columns, ids), terms, limit)
        batch.waiting.extend(self._jobs(len(completions)))
        with self._lock:
            self._finish(batch)
        return [batch.verdicts[row] for row in range(len(completions))]

    def _finish(self, batch: _Batch) -> None:
        try:
            while len(batch.verdicts) < len(batch.inputs[0]):
                self._fill_up()
                self._hand_out(batch)
                wait_for_slots(self._slots)
                for slot in list(self._slots):
                    self._attend(slot, batch)
        except BaseException:
            # Their verdicts would arrive during the next batch, where they are invalid replies.
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
            self._slots.append(_Slot(process))

    def _await_first(self) -> None:
        nothing = _Batch(((), (), ()), TERMS, self.timeout)
        while not any(slot.ready for slot in self._slots):
            wait_for_slots(self._slots)
            for slot in list(self._slots):
                self._attend(slot, nothing, starts=1)

    def _hand_out(self, batch: _Batch) -> None:
        for slot in self._slots:
            if batch.waiting and slot.ready and slot.job is None:
                self._number += 1
                job = batch.waiting.popleft()
                # What it printed before is no evidence on this job.
                slot.number, slot.process.printed = self._number, b""
                slot.process.send(batch.request(self._number, job))
                slot.job, slot.deadline = job, time.monotonic() + self._clock(job, batch.limit)

    def _clock(self, job: _Job, limit: float) -> float:
        if job.mode == "whole":
            return limit * len(job.rows)
        return limit if job.mode == "each" else self._async_clock * limit / self.timeout

    def _attend(self, slot: _Slot, batch: _Batch, starts: int = FAILED_STARTS) -> None:
        """Take the replies of a worker; remove it if it has died, hangs or sends an invalid reply."""
        loss = slot.attend(lambda reply: self._take(slot, reply, batch))
        if loss is not None:
            self._lose(slot, batch, loss, starts)

    def _take(self, slot: _Slot, reply: list[object], batch: _Batch) -> None:
        kind, *values = reply
        if kind == "loaded":
            slot.loaded = True
        elif kind == "ready":
            slot.ready, slot.deadline, self._failed_starts = True, math.inf, 0
        elif kind == "refused" and len(values) == 4:
            raise InputError(*map(str, values[1:]))
        elif kind == "verdict" and slot.job is not None and values[:1] == [slot.number]:
            self._note(slot, slot.job, values[1:], batch)
        else:
            raise BadReply(repr(reply)[:60])

    def _note(self, slot: _Slot, job: _Job, values: list[object], batch: _Batch) -> None:
        place, verdict = read_verdict(values)
        if place not in job.open:
            raise BadReply(f"a second verdict on completion {place}")
        if verdict.status in FAILED:
            slot.process.read_output()
            verdict = replace(verdict, trace=f"{verdict.trace}\n{slot.evidence()}".strip())
        job.open.remove(place)
        row = job.rows[place]
        if job.mode == "each" and verdict.status == "timeout" and row not in batch.again:
            batch.again.add(row)  # the machine may be less busy when the others are done
            batch.waiting.append(_Job("each", [row]))
        else:
            batch.verdicts[row] = verdict
        batch.losses = 0
        slot.deadline = slot.deadline if job.mode != "each" else time.monotonic() + batch.limit
        if not job.open:
            slot.job, slot.deadline = None, math.inf

    def _lose(self, slot: _Slot, batch: _Batch, loss: WorkerLoss, starts: int) -> None:
        """End a worker; its completions have failed, or go to other workers."""
        self._remove(slot)
        status: Status = "timeout" if loss.kind == "late" else "error"
        place = slot.hung_in() if loss.kind == "late" else ""
        said = {"late": f"{overdue(batch.limit)}{place}", "wrong": f"the reward's process sent no verdict: {loss.what}"}
        what, trace = said.get(loss.kind, f"the reward's process {loss.what}"), slot.evidence()
        if not slot.ready:
            self._failed_starts += 1
            if self._failed_starts >= starts:
                why = loss.at_start(what) + place
                kind = _DiesOnExamples if slot.loaded else RunError
                raise kind(f"No worker process for the reward '{self.__name__}' could be started: {why}. {trace}")
        if slot.job is None:
            return
        rows, batch.losses = slot.job.open_rows, batch.losses + 1
        failed = Verdict(status, what=what, trace=trace)
        if slot.job.mode == "whole":
            batch.fail(rows, failed)
        elif slot.job.mode == "each":
            # A worker scores in the order of the job, so the first completion without a verdict is the one to blame.
            batch.fail(rows[:1], failed)
            batch.waiting.extendleft([_Job("each", rows[1:])] if rows[1:] else [])
        else:  # scored one by one, the completion that is to blame shows
            batch.waiting.extendleft(_Job("each", [row]) for row in reversed(rows))
        if batch.losses >= IN_A_ROW:
            given_up = Verdict(status, what=f"not scored, because {IN_A_ROW} completions in a row ended their worker")
            batch.fail([row for job in batch.waiting for row in job.rows], given_up)
            batch.waiting.clear()

    def _remove(self, slot: _Slot) -> None:
        self._slots.remove(slot)
        slot.process.kill()


def _end(slots: list[_Slot]) -> None:
    end_workers((slot.process, slot.job is None and slot.ready) for slot in slots)
    slots.clear()
