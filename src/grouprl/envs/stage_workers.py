"""Environments in worker processes: a clock per call, memory limits, and a new worker for one that hangs or dies.

Episodes are parted among the workers by their number. When a worker is lost, the environment that it was busy with
has failed; the others are made anew in another worker and the same calls are made again, so nothing of them is lost.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grouprl.core.errors import InputError, RunError
from grouprl.envs import stage_worker
from grouprl.envs.plain import from_plain
from grouprl.envs.stage import Call, HereStage, Stage
from grouprl.rewards.contract import Failure
from grouprl.rewards.process import BadReply, WorkerProcess, hello_frame
from grouprl.rewards.transport import CannotSend, pack

MOST_WORKERS = 8
"""So many at most where the number is left to `auto`."""
START_SECONDS = 120.0
"""How long a worker may take to import the task."""
FAILED_STARTS = 3
"""So many workers in a row that cannot start end the run."""
IN_A_ROW = 8
"""So many lost workers between two answers: the remaining calls are not made."""
LONGEST_WAIT = 0.1
LONGEST_REPLY = 16 << 20
"""Bytes of an answer; a longer one is an error."""


@dataclass
class _Asked:
    """One call: its environment, its arguments, and its answer if that is known already."""

    episode: int
    method: str
    arguments: tuple[Any, ...]
    place: int = -1
    """Place of the answer among the current calls; -1 for one that is repeated."""
    known: Any = None
    answered: bool = False


@dataclass
class _Slot:
    """A worker and the calls that it was sent, the oldest first; `deadline` is when it is given up."""

    process: WorkerProcess
    deadline: float
    ready: bool = False
    asked: deque[tuple[int, _Asked]] = field(default_factory=deque)


class WorkerStage:
    """Environments of a task in `count` processes, usable wherever a stage is; `close` ends them.

    `timeout` is the seconds that one call may take, `memory_gb` the memory of each process. Answers do not depend on
    the number of processes. The processes are started when the first call is made.

    Raises:
        CannotSend: the task cannot be found or pickled for another process.
    """

    def __init__(self, task: Any, count: int, *, timeout: float, memory_gb: float) -> None:
        if count < 1:
            raise InputError(f"Environments got {count} workers", "there is at least one")
        self.name, self.count, self.timeout = task.name, count, timeout
        try:
            self._hello = hello_frame(pack(task), int(memory_gb * 2**30), [])
        except CannotSend as error:
            raise CannotSend(
                f"The task '{task.name}' cannot be sent to a worker process: {error.what.replace('The reward', 'it')}",
                "a worker imports the task, so its class must be found by module and name",
                "Define it at the top of a module, or set environment.workers to 0",
            ) from error
        self._slots: dict[int, _Slot] = {}
        self._journal: dict[int, list[_Asked]] = {}
        self._spoilt: dict[int, Failure] = {}
        self._failed_starts, self._number, self._losses = 0, 0, 0
        self._end = weakref.finalize(self, _end, self._slots)

    def call(self, method: str, calls: Sequence[Call]) -> list[Any | Failure]:
        """Make the calls, those of one worker one after the other.

        Raises:
            RunError: no worker can be started any more.
        """
        if not calls:
            return []
        asked = [_Asked(episode, method, given, place) for place, (episode, given) in enumerate(calls)]
        try:
            for each in asked:
                if method == "close" and self._nothing_of(each.episode):
                    each.answered = True
                else:
                    self._ask(each)
            while any(not each.answered for each in asked):
                self._wait()
                for index in list(self._slots):
                    self._attend(index)
        except BaseException:
            self.close()
            raise
        return [each.known for each in asked]

    def clear(self) -> None:
        """Close every environment that is left."""
        if self._journal:
            self.call("close", [(episode, ()) for episode in self._journal])

    def close(self) -> None:
        """End the processes; nothing is left of them afterwards. A later call starts new ones."""
        _end(self._slots)
        self._journal.clear()
        self._spoilt.clear()

    def _ask(self, each: _Asked) -> None:
        slot = self._slot(each.episode % self.count)
        self._number += 1
        try:
            frame = pickle.dumps((self._number, each.method, each.episode, each.arguments))
        except Exception as error:  # pickling runs the code of the objects it meets
            raise InputError(
                f"The columns of an example of the task '{self.name}' cannot be sent to a worker process: {error}",
                "a worker receives them pickled",
                "Keep plain data in the columns, or set environment.workers to 0",
            ) from error
        if slot.ready and not slot.asked:
            slot.deadline = time.monotonic() + self.timeout
        slot.asked.append((self._number, each))
        slot.process.send(frame)

    def _nothing_of(self, episode: int) -> bool:
        """Whether an episode's worker is gone, and it was not brought back in another."""
        return episode not in self._journal and episode % self.count not in self._slots

    def _slot(self, index: int) -> _Slot:
        """Return worker `index`, started if it is not there."""
        if index not in self._slots:
            try:
                process = WorkerProcess(self._hello, stage_worker.__file__, LONGEST_REPLY)
            except OSError as error:  # too many open files, no memory for another process
                raise RunError(f"No worker process for the task '{self.name}' can be started: {error}") from error
            self._slots[index] = _Slot(process, time.monotonic() + START_SECONDS)
        return self._slots[index]

    def _wait(self) -> None:
        """Sleep until a worker has something to say, can take more, or must be given up."""
        poll = select.poll()
        for slot in self._slots.values():
            poll.register(slot.process.replies, select.POLLIN)
            poll.register(slot.process.output, select.POLLIN)
            if slot.process.sending:
                poll.register(slot.process.requests, select.POLLOUT)
        left = min(slot.deadline for slot in self._slots.values()) - time.monotonic()
        poll.poll(1000 * max(0.0, min(left, LONGEST_WAIT)))

    def _attend(self, index: int) -> None:
        """Take what a worker has said; replace it if it has died, hangs or talks nonsense."""
        slot = self._slots[index]
        process, ended = slot.process, slot.process.ended()
        process.flush()
        process.read_output()
        try:
            for reply in process.read_replies():
                self._take(slot, reply)
        except (BadReply, ValueError, TypeError, KeyError) as error:
            self._lose(index, "error", f"sent something that is not an answer: {str(error)[:200]}")
            return
        if ended:
            self._lose(index, "error", f"did not return: the process of the environment {process.how_it_ended()}")
        elif time.monotonic() > slot.deadline:
            process.say_where()
            self._lose(index, "timeout", f"did not return within {self.timeout:g} s (environment.timeout)")

    def _take(self, slot: _Slot, reply: list[Any]) -> None:
        if reply == ["ready"]:
            slot.ready, self._failed_starts = True, 0
        elif len(reply) == 3 and reply[0] == "answer" and slot.asked and reply[1] == slot.asked[0][0]:
            self._note(slot.asked.popleft()[1], from_plain(reply[2]))
        else:
            raise BadReply(repr(reply)[:60])
        slot.deadline = time.monotonic() + self.timeout if slot.asked else math.inf

    def _note(self, each: _Asked, found: Any) -> None:
        """Keep an answer, and the call with it, to bring the environment back; a repeated call has to give the same."""
        if each.answered:
            if repr(found) != repr(each.known):
                self._spoilt.setdefault(each.episode, _changed(each, found))
            return
        if each.method == "close":
            self._journal.pop(each.episode, None)
            self._spoilt.pop(each.episode, None)
        else:
            found = self._spoilt.get(each.episode, found)
        each.known, each.answered, self._losses = found, True, 0
        if each.method != "close" and not isinstance(found, Failure):
            self._journal.setdefault(each.episode, []).append(each)

    def _lose(self, index: int, status: Literal["error", "timeout"], what: str) -> None:
        """End a worker. The call that it was busy with has failed; the others are made again in a new one."""
        slot = self._slots.pop(index)
        slot.process.kill()
        printed = slot.process.printed.decode(errors="replace").strip()
        trace = f"last output of the process:\n{printed}" if printed else ""
        if not slot.ready:
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS:
                why = what if status == "error" else f"it was not ready after {START_SECONDS:g} s"
                raise RunError(f"No worker process for the task '{self.name}' could be started: {why}. {trace}")
        elif slot.asked:
            _, culprit = slot.asked[0]
            self._losses += 1
            self._fail(slot, culprit.episode, Failure(f"{culprit.method}() {what}", trace, status))
        self._again(index, slot)

    def _fail(self, slot: _Slot, episode: int, failure: Failure) -> None:
        """Note what became of an episode; of all that wait, where the workers do not stop being lost."""
        self._journal.pop(episode, None)
        given_up = Failure(f"not tried, after {IN_A_ROW} environments in a row that ended their process", "", "error")
        for _, each in slot.asked:
            if not each.answered and each.episode == episode:
                each.known, each.answered = failure, True
            elif not each.answered and self._losses >= IN_A_ROW:
                each.known, each.answered = given_up, True
                self._journal.pop(each.episode, None)

    def _again(self, index: int, lost: _Slot) -> None:
        """Bring the environments of a lost worker back in the new one, then make the calls that are left."""
        for episode, done in self._journal.items():
            if episode % self.count == index:
                for each in done:
                    self._ask(each)
        for _, each in lost.asked:
            if not each.answered:
                self._ask(each)


def open_stage(
    task: Any,
    workers: int | Literal["auto"] = 0,
    *,
    timeout: float = 60.0,
    memory_gb: float = 4.0,
    most: int = MOST_WORKERS,
) -> tuple[Stage, str]:
    """Return the stage of a task's environments, and the reason why it is not in workers although it should be.

    `workers`: how many processes; 0 for this one; "auto" for this one if the environment is of this package, else one
    per core, `most` at most.

    Raises:
        CannotSend: a number of workers is given and the task cannot be sent to them.
    """
    if workers == 0 or (workers == "auto" and harmless(task)):
        return HereStage(task.environment), ""
    try:
        if os.name != "posix":
            raise CannotSend("This system has no process groups", "workers need them to be stopped with their children")
        count = min(most, _cores()) if workers == "auto" else workers
        return WorkerStage(task, count, timeout=timeout, memory_gb=memory_gb), ""
    except CannotSend as error:
        if workers != "auto":
            raise
        said = f"{error} It acts in this process: environment.timeout does not hold and a hang stops the run."
        return HereStage(task.environment), said


def harmless(task: Any) -> bool:
    """Whether a task and its environment are this package's own and run no code of others: they always return."""
    if task.needs_clock:
        return False
    example = task.environment()
    inner = getattr(example, "_inner", example)
    if example is not None:
        example.close()
    return all(type(each).__module__.startswith("grouprl.") for each in (task, example, inner))


def _changed(each: _Asked, found: Any) -> Failure:
    before, now = (repr(getattr(x, "observation", x))[:120] for x in (each.known, found))
    return Failure(
        f"it is not reproducible: made anew with the same seed and actions, {each.method}() gave {now} where it had "
        f"given {before}. Draw all chance from the seed",
        "",
        "error",
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end(slots: dict[int, _Slot]) -> None:
    for slot in slots.values():
        if slot.ready and not slot.asked:
            slot.process.hang_up()
    for slot in slots.values():
        if slot.ready and not slot.asked:
            slot.process.dismiss()
        else:
            slot.process.kill()
    slots.clear()
