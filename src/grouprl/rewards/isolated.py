"""Calls in processes of their own: for verifiers that may hang, use up memory or run a completion as code.

What a completion causes (no end, no memory, an exception, a forbidden act) comes back as `Spoiled` and is a reward of
0 to every caller. What the machine causes (no process can be started, too little processor time) is raised: a call is
judged by the processor time that it used, never by the clock on the wall, which runs as fast on a crowded machine.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import threading
import time
from dataclasses import dataclass

from grouprl.core.errors import RunError
from grouprl.rewards import clock
from grouprl.rewards import isolated_worker as apart_worker
from grouprl.rewards.contract import Crowded
from grouprl.rewards.process import BadReply, WorkerProcess, hello_frame

CPU_SECONDS = 1.0
"""Processor time of a call."""
WALL_SECONDS = 8.0
"""Time after which the machine is to blame, not the call: less than `reward.timeout`, 10 s, by default."""
TRIES = 3
"""How often a call is made that the machine gave too little time, as long as the clock of the answer allows it."""
START_SECONDS = 120.0
"""Time in which a process must start, import and reply; calls end by their own limits long before."""
MEMORY = 2 << 30
HASH_SEED = {"PYTHONHASHSEED": "0"}
"""Of the process of all calls, whatever this one has: sets of texts have the same order in every run."""


@dataclass(frozen=True)
class Spoiled:
    """A call that gave no value through its own fault, and why."""

    why: str


@dataclass
class Allowance:
    """How much of `reward.timeout` a call may use, set by the process in which a reward runs."""

    timeout: float = 10.0

    @property
    def cpu(self) -> float:
        """Seconds of processor time: a fifth of the reward's own clock, so that the two never meet."""
        return min(CPU_SECONDS, self.timeout / 5)

    @property
    def wall(self) -> float:
        """Seconds of the clock on the wall."""
        return min(WALL_SECONDS, 0.8 * self.timeout)


ALLOWANCE = Allowance()


@dataclass(frozen=True)
class Apart:
    """A function whose calls each run in a fresh fork of the one process that has imported it.

    `target` is "module:name"; arguments are pickled, the value is JSON. With a `recipe`, the target is called with it
    once, and what it returns is the function. `runs_text` says whether it may run text as a program, as sympy's parser
    does: what reaches it must then have passed a grammar.
    """

    target: str
    runs_text: bool = False
    recipe: tuple[object, ...] | None = None
    seconds: float | None = None
    """Processor time of a call; None: as a reward's clock allows."""

    def __call__(self, *arguments: object) -> object:
        """Return the value of one call, or `Spoiled`.

        Raises:
            RunError: if the function cannot be imported, or this machine gave it no process.
            Crowded: if this machine gave it too little processor time, several times where there is time for that.
        """
        cpu, wall = (ALLOWANCE.cpu, ALLOWANCE.wall) if self.seconds is None else (self.seconds, 4 * self.seconds)
        frame = pickle.dumps((self.target, self.recipe, self.runs_text, (cpu, wall, MEMORY), arguments))
        for _ in range(TRIES):
            kind, said = SERVER.request(frame)
            left = clock.left()
            if [kind, said] != ["overdue", "wall"] or (left is not None and left < wall):
                break
        if kind == "value":
            return said
        if kind == "broken":
            raise RunError(f"'{self.target}' cannot be imported: {said}")
        if kind == "overdue" and said == "wall":
            raise Crowded(f"this machine gave '{self.target}' less than {cpu:g} s of processor time within {wall:g} s")
        return Spoiled(f"more than {cpu:g} s of processor time" if kind == "overdue" else str(said))


class _VerifierProcess:
    """The process that forks, started when it is first needed, in whichever process asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None
        self._owner = 0

    def request(self, frame: bytes) -> list[object]:
        """Send a call and return the reply; a process that was ended from outside is started anew once."""
        with self._lock:
            for _ in range(2):
                try:
                    process = self._started()
                    process.send(frame)
                    return self._reply(process)
                except BadReply as error:
                    self._end()
                    last = error
                except BaseException:  # an interrupt: the reply that is under way belongs to nobody
                    self._end()
                    raise
            raise RunError(f"The process for verifiers keeps ending: {last}")

    def close(self) -> None:
        """End the process, if there is one; the next call starts another."""
        with self._lock:
            self._end()

    def _started(self) -> WorkerProcess:
        if self._process is not None and self._owner == os.getpid():
            return self._process
        try:
            hello, script = hello_frame({}, MEMORY, []), apart_worker.__file__
            self._process, self._owner = WorkerProcess(hello, script, variables=HASH_SEED), os.getpid()
        except OSError as error:
            raise RunError(f"No process for verifiers can be started: {error}") from error
        self._reply(self._process)
        return self._process

    def _reply(self, process: WorkerProcess) -> list[object]:
        deadline = time.monotonic() + START_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(process.replies, select.POLLIN)
            poll.register(process.output, select.POLLIN)
            if process.sending:
                poll.register(process.requests, select.POLLOUT)
            poll.poll(1000 * min(left, 0.1))
            ended = process.ended()
            process.flush()
            process.read_output()
            for reply in process.read_replies():
                return reply
            if ended:
                printed = process.printed.decode(errors="replace").strip()
                raise BadReply(f"it {process.how_it_ended()}. {printed[-1000:]}")
        raise RunError(f"The process for verifiers sent nothing within {START_SECONDS:g} s")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            with contextlib.suppress(OSError):
                process.kill()

    def forget(self) -> None:
        """Leave the process to the parent of this fork; a call from here starts another."""
        self._lock, self._process = threading.Lock(), None


SERVER = _VerifierProcess()
atexit.register(SERVER.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SERVER.forget)
