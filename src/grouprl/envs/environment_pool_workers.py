"""Environments in worker processes: a clock per call, memory limits, and a new worker for one that hangs or dies.

An episode is placed in the worker that has the fewest episodes when it begins. When a worker is lost, only the episode
that caused it fails: the others are made again and their calls repeated, each when its next call arrives, so nothing of
them is lost. An episode whose call hangs is the cause. If a process ends, the episode whose call was running is
restored in a process of its own: if that process ends too, the episode was the cause; otherwise it continues there.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Literal

from grouprl.core.errors import InputError, RunError
from grouprl.core.hashing import content_number
from grouprl.envs.environment_pool import TIMED, AnsweringStage, Call, PlayedTask
from grouprl.envs.environment_pool_losses import EpisodeAccount
from grouprl.envs.environment_pool_slots import Slot, StageCall, end, unlike
from grouprl.envs.environment_pool_worker import prepare, serve
from grouprl.envs.json_values import from_plain
from grouprl.processes.fork_server import ForkServer, WorkerStarter
from grouprl.processes.frames import BadReply
from grouprl.processes.parcel import CannotSend, pack
from grouprl.processes.usage import core_count, memory_for_another
from grouprl.processes.worker_process import LONGEST_WAIT, WorkerSpec
from grouprl.processes.worker_slot import FAILED_STARTS, WorkerLoss, wait_for_slots
from grouprl.rewards.contract import Failure

SLOW_SECONDS = 0.05
"""A call that takes this many seconds no longer keeps others waiting behind it, if another worker can take them."""
LONGEST_REPLY = 16 << 20
"""Bytes of the longest answer; a longer one is an error."""


class WorkerStage(AnsweringStage):
    """A pool of a task's environments in `count` processes, usable wherever a `Stage` is; `close` ends them.

    `timeout` limits the seconds of one call, and `memory_gb` the memory of each process. While calls wait instead of
    computing, up to `most` processes take the calls queued behind them (None: no more than `count`). Answers do not
    depend on the number of processes. They are started when first needed, by `server` if it is given, which is not
    closed with them.

    Raises:
        CannotSend: the task cannot be found or pickled for another process.
    """

    def __init__(
        self,
        task: PlayedTask,
        count: int,
        *,
        timeout: float,
        memory_gb: float,
        most: int | None = None,
        server: ForkServer | None = None,
    ) -> None:
        super().__init__()
        if count < 1:
            raise InputError(f"environment.workers gives {count} workers", "at least one is needed")
        self.name, self.count, self.most, self.timeout = task.name, count, max(most or count, count), timeout
        try:
            given = (pack(task, "task"), timeout)
            spec = WorkerSpec(serve, given, int(memory_gb * 2**30), LONGEST_REPLY)
        except CannotSend as error:
            raise CannotSend(
                f"The task '{task.name}' cannot be sent to a worker process: {error.what.replace('The task', 'it')}",
                "a worker imports the task, so its class must be importable by module and name",
                "Define it at the top of a module, or set environment.workers to 0",
            ) from error
        self._starter = WorkerStarter(spec, prepare, server)
        self._slots: dict[Hashable, Slot] = {}
        self._home: dict[int, Hashable] = {}
        self._apart: set[int] = set()
        self._journal: dict[int, list[StageCall]] = {}
        self._prompt: dict[int, str] = {}
        self._dead: dict[int, Failure] = {}
        self._spoilt: dict[int, Failure] = {}
        self._account = EpisodeAccount(task.name)
        self._number, self._open, self._failed_starts = itertools.count(1), 0, 0
        self._looked = 0.0
        """The time when all workers were last checked."""
        self._end = weakref.finalize(self, end, self._slots, self._starter)

    def send(self, method: str, calls: Sequence[Call]) -> None:
        """Begin calls of different episodes.

        Raises:
            InputError: arguments cannot be sent to a process.
        """
        for episode, given in calls:
            each = StageCall(episode, method, given)
            self._open += 1
            if method == "reset":
                self._prompt[episode] = str(getattr(given[0], "id", ""))
            if method == "close" and episode not in self._home:
                self._forget(episode)
                self._answer(each, None)
            elif episode in self._dead:
                self._answer(each, self._dead[episode])
            else:
                self._ask(each)
        for slot in self._slots.values():
            self._feed(slot)

    @property
    def started(self) -> int:
        """The number of worker processes that are running."""
        return len(self._slots)

    def clear(self) -> None:
        """Close every remaining environment without waiting for pending answers."""
        if self._open:  # a play was aborted: its workers may be busy for a long time
            self.close()
        elif self._journal:
            self.call("close", [(episode, ()) for episode in self._journal])
        self._answers.clear()
        self._account.clear()

    def close(self) -> None:
        """End all processes. A later call starts new ones."""
        end(self._slots, self._starter)
        for held in (self._home, self._apart, self._journal, self._prompt, self._dead, self._spoilt, self._answers):
            held.clear()
        self._open = 0

    # ------------------------------------------------------------------------------------------------ calls

    def _ask(self, each: StageCall) -> None:
        """Queue a call at the worker of its environment; restore the environment first if no worker has it."""
        key = self._home.get(each.episode)
        if key is None:
            key = self._home[each.episode] = self._place(each.episode)
            self._slots[key].queued.extend(self._journal.get(each.episode, ()))
        each.turn = len(self._journal.get(each.episode, ()))
        slot = self._slots[key]
        slot.episodes.pop(each.episode, None)
        slot.episodes[each.episode] = None
        slot.queued.append(each)

    def _place(self, episode: int) -> Hashable:
        """Return the worker for an episode: a separate one for a suspect, otherwise the one with the fewest."""
        if episode in self._apart:
            return self._start(("apart", episode))
        shared = self._shared()
        fewest = min((slot for slot in shared if not slot.spare), key=lambda slot: len(slot.episodes), default=None)
        if fewest is None or (fewest.episodes and len(shared) < self.count):
            if self.most > self.count:
                self._starter.prepare_copies()
            return self._start(self._free())
        return fewest.key

    def _free(self) -> int:
        """Return a number that no worker has."""
        return next(i for i in itertools.count() if i not in self._slots)

    def _shared(self) -> list[Slot]:
        return [slot for slot in self._slots.values() if not slot.apart]

    def _start(self, key: Hashable) -> Hashable:
        try:
            process = self._starter.start()
        except OSError as error:  # too many open files, no memory for another process
            raise RunError(f"No worker process for the task '{self.name}' can be started: {error}") from error
        apart = isinstance(key, tuple)
        self._slots[key] = Slot(process, key, self.timeout, apart)
        return key

    def _feed(self, slot: Slot) -> None:
        try:
            slot.feed(self._number)
        except Exception as error:  # pickling runs the code of the objects it meets
            self.close()
            raise InputError(
                f"The columns of an example of the task '{self.name}' cannot be sent to a worker process: {error}",
                "a worker receives them pickled",
                "Keep plain data in the columns, or set environment.workers to 0",
            ) from error

    def _answer(self, each: StageCall, found: object) -> None:
        each.known, each.answered = found, True
        self._answers[each.episode] = found
        self._open -= 1

    # ---------------------------------------------------------------------------------------------- answers

    def _pump(self, seconds: float | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        before = len(self._answers)
        try:
            while self._open:
                heard = self._wait(LONGEST_WAIT if until is None else min(LONGEST_WAIT, until - time.monotonic()))
                for slot in heard:
                    if self._slots.get(slot.key) is slot:
                        self._attend(slot)
                self._balance()
                if len(self._answers) > before or (until is not None and time.monotonic() >= until):
                    return
        except BaseException:
            self.close()
            raise

    def _wait(self, longest: float) -> list[Slot]:
        """Wait until a worker has sent something, can accept more, or must be given up; return such workers.

        From time to time return all of them, because a process may have ended while its children hold its pipes.
        """
        spoke = wait_for_slots(self._slots.values(), longest)
        now = time.monotonic()
        if now - self._looked >= LONGEST_WAIT:
            self._looked = now
            return list(self._slots.values())
        return [slot for slot in self._slots.values() if slot.process in spoke or now > slot.deadline]

    def _attend(self, slot: Slot) -> None:
        """Take a worker's replies; replace it if it has died, hangs or sends something invalid."""
        if (loss := slot.attend(lambda reply: self._take(slot, reply))) is not None:
            self._lose(slot, loss)
        elif self._slots.get(slot.key) is slot:
            self._feed(slot)

    def _take(self, slot: Slot, reply: list[Any]) -> None:
        kind, *values = reply
        try:
            if kind == "ready" and len(values) == 1:
                self._failed_starts = 0
                slot.started(bool(values[0]))
                return
            if kind == "on" and len(values) == 1 and slot.together:
                slot.watch(int(values[0]))
                return
            if kind != "answer":
                raise ValueError(repr(reply)[:60])
            number, found, wall, _ = values
            each, answer = slot.taken(number, float(wall)), from_plain(found)
        except (ValueError, TypeError, KeyError) as error:
            raise BadReply(str(error)[:200]) from error
        self._note(slot, each, answer)

    def _note(self, slot: Slot, each: StageCall, found: object) -> None:
        """Keep an answer with its call, to restore the environment; a repeated call must give the same answer."""
        if each.answered:
            if each.method != "close" and repr(found) != repr(each.known):
                self._spoilt.setdefault(each.episode, unlike(each, found))
            return
        if each.method == "close":
            self._leave(slot, each.episode)
            self._forget(each.episode)
            self._answer(each, found)
            return
        found = self._spoilt.get(each.episode, found)
        self._answer(each, found)
        prompt = self._prompt.get(each.episode, "")
        if each.method in TIMED:
            self.times.add(prompt, each.seconds)
        if isinstance(found, Failure):
            if found.lost:
                self._count_lost(each, found)
            return
        self._account.answered(prompt, each.method)
        self._journal.setdefault(each.episode, []).append(each)

    def _leave(self, slot: Slot, episode: int) -> None:
        """Remove an episode from this worker; end the worker if it was separate for that episode."""
        self._home.pop(episode, None)
        slot.episodes.pop(episode, None)
        if slot.apart and self._slots.pop(slot.key, None) is slot:
            slot.process.hang_up()
            slot.process.dismiss()

    def _forget(self, episode: int) -> None:
        for held in (self._journal, self._prompt, self._dead, self._spoilt):
            held.pop(episode, None)
        self._apart.discard(episode)

    # -------------------------------------------------------------------------------------- lost and moved

    def _lose(self, slot: Slot, loss: WorkerLoss) -> None:
        """End a worker, find out which episode caused the loss, and repeat the calls of the others."""
        del self._slots[slot.key]
        slot.process.kill()
        said = {
            "late": f"did not return within {self.timeout:g} s (environment.timeout)",
            "wrong": f"sent something that is not an answer: {loss.what}",
        }
        what = said.get(loss.kind, f"did not return: the process of the environment {loss.what}")
        if not slot.ready:
            self._failed_starts += 1
            self._starter.stop_copying()  # whatever the reason: the next one is not a fork
            if self._failed_starts >= FAILED_STARTS:
                why, printed = loss.at_start(what), slot.evidence()
                raise RunError(f"No worker process for the task '{self.name}' could be started: {why}. {printed}")
        open_calls = slot.open_calls()
        for episode in slot.episodes:
            self._home.pop(episode, None)
        if slot.ready:
            self._starter.prepare_copies()  # more may be lost, and suspects are restored in workers of their own
            self._blame(slot, "timeout" if loss.kind == "late" else "error", what)
        again = sorted(open_calls, key=lambda each: content_number(str(each.episode)))  # in an unrelated order
        for each in again:
            if each.answered:
                continue
            if (failure := self._in_vain(each)) is not None:
                self._give_up(each, failure)
            else:
                self._ask(each)
        for other in self._slots.values():
            self._feed(other)

    def _blame(self, slot: Slot, status: Literal["error", "timeout"], what: str) -> None:
        """Decide which episode caused the loss of a worker, or which one is to be tried separately."""
        culprit = slot.culprit
        episode = next(reversed(slot.episodes), None) if culprit is None else culprit.episode
        if episode is None:
            return
        alone = slot.apart or len(slot.episodes) == 1
        if not alone and (status == "error" or culprit is None):
            self._apart.add(episode)
            return
        method = culprit.method if culprit is not None else "an earlier call"
        failure = Failure(f"{method}{'()' * (culprit is not None)} {what}", slot.evidence(), status, lost=True)
        self._journal.pop(episode, None)
        self._apart.discard(episode)
        self._dead[episode] = failure
        for each in slot.open_calls():
            if each.episode == episode:
                self._answer(each, None if each.method == "close" else failure)
        self._count_lost(culprit or StageCall(episode, "step", ()), failure)

    def _count_lost(self, each: StageCall, failure: Failure) -> None:
        """Count a lost episode, and give up the episodes that are no longer tried because of it."""
        self._account.lost(self._prompt.get(each.episode, ""), each.method, failure)
        for slot in self._slots.values():
            for other in [one for one in slot.queued if not one.answered]:
                if (in_vain := self._in_vain(other)) is not None:
                    slot.release(other.episode)
                    self._give_up(other, in_vain)

    def _in_vain(self, each: StageCall) -> Failure | None:
        return self._account.in_vain(self._prompt.get(each.episode, ""))

    def _give_up(self, each: StageCall, failure: Failure) -> None:
        self._home.pop(each.episode, None)
        self._journal.pop(each.episode, None)
        self._dead[each.episode] = failure
        self._answer(each, None if each.method == "close" else failure)

    def _balance(self) -> None:
        """Give calls queued behind a slow one to idle workers; start more workers if the slow call is waiting."""
        shared = self._shared()
        idle, left = deque(slot for slot in shared if slot.idle), 0
        for slot in shared:
            if slot.together or not slot.ready or time.monotonic() - slot.since < SLOW_SECONDS:
                continue
            while idle and (episode := slot.movable(self._cost)) is not None:
                self._move(episode, slot, idle.popleft())
            if slot.waits(SLOW_SECONDS):
                left += slot.behind(self._cost)
        self._grow(shared, left)

    def _move(self, episode: int, slot: Slot, other: Slot) -> None:
        """Restore an episode that is queued in `slot` in the worker `other`."""
        calls = slot.release(episode)
        self._home[episode] = other.key
        other.episodes[episode] = None
        other.queued.extend([*self._journal.get(episode, ()), *calls])
        self._feed(other)

    def _grow(self, shared: Sequence[Slot], waiting: int) -> None:
        """Start workers for the `waiting` episodes that are queued behind others, as far as limits and memory allow.

        Forks start at once; other workers import the task first, so only one per core starts at a time.
        """
        starting = sum(not each.ready for each in shared)
        wanted = min(waiting - starting, self.most - len(shared))
        if wanted <= 0 or (state := self._starter.prepare_copies()) == "importing":
            return
        if state == "useless":
            wanted = min(wanted, 1, core_count() - starting)
        for n in range(wanted):
            if not memory_for_another(shared[0].process.child.pid, starting + n):
                return
            self._slots[self._start(self._free())].spare = True

    def _cost(self, episode: int) -> float:
        """Return the seconds that restoring an episode takes."""
        return sum(each.seconds for each in self._journal.get(episode, ()))
