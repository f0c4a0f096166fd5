"""Calls in processes of their own: for verifiers that may hang, eat memory or run what a completion says.

What a completion causes (no end, no memory, an exception, a forbidden act) comes back as `Spoiled` and is a reward of
0 to whoever asks. What the machine causes (no process can be started, no processor time for seconds) is raised.
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
from typing import Any

from grouprl.errors import RunError
from grouprl.rewards import apart_worker
from grouprl.rewards.process import BadReply, WorkerProcess, hello_frame

CPU_SECONDS = 2.0
"""Processor time of a call."""
WALL_SECONDS = 8.0
"""Time after which the machine is to blame, not the call: less than `reward.timeout`, 10 s, by default."""
START_SECONDS = 120.0
MEMORY = 2 << 30


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


class Apart:
    """A function "module:name" whose calls each run in a fresh fork of one process that has imported it.

    Args:
        target: where the function is found; its arguments are pickled, its value is JSON.
        runs_text: whether the function may run text as a program, as sympy's parser does. What reaches it must then
            have passed a grammar.
        recipe: if given, the target is called with it once, and what it returns is the function.
    """

    def __init__(self, target: str, runs_text: bool = False, recipe: tuple[Any, ...] | None = None) -> None:
        self.target, self.runs_text, self.recipe = target, runs_text, recipe
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None
        self._owner = 0

    def __call__(self, *arguments: Any) -> Any | Spoiled:
        """Return the value of one call, or `Spoiled`.

        Raises:
            RunError: if the process cannot be started, or this machine gave a call no processor time.
        """
        with self._lock:
            for _ in range(2):  # a process that was ended from outside, between two calls, is started anew once
                try:
                    return self._ask(arguments)
                except BadReply:
                    self.close()
            raise RunError(f"The process of '{self.target}' ends again and again")

    def _ask(self, arguments: tuple[Any, ...]) -> Any | Spoiled:
        process = self._started()
        cpu, wall = ALLOWANCE.cpu, ALLOWANCE.wall
        process.send(pickle.dumps((cpu, wall, arguments)))
        kind, said = self._reply(process, wall + 5)
        if kind == "value":
            return said
        if kind == "overdue" and said == "wall":
            raise RunError(f"'{self.target}' got too little processor time within {wall:g} s")
        return Spoiled(f"more than {cpu:g} s of processor time" if kind == "overdue" else str(said))

    def _started(self) -> WorkerProcess:
        if self._process is not None and self._owner == os.getpid():
            return self._process
        pickled = hello_frame({}, MEMORY, [])
        hello = pickle.loads(pickled) | {
            "target": self.target,
            "runs_text": self.runs_text,
            "recipe": self.recipe,
        }
        try:
            self._process, self._owner = WorkerProcess(pickle.dumps(hello), apart_worker.__file__), os.getpid()
        except OSError as error:
            raise RunError(f"No process for '{self.target}' can be started: {error}") from error
        atexit.register(self.close)
        self._reply(self._process, START_SECONDS)
        return self._process

    def _reply(self, process: WorkerProcess, seconds: float) -> list[Any]:
        deadline = time.monotonic() + seconds
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
                raise BadReply(f"the process of '{self.target}' {process.how_it_ended()}. {printed[-1000:]}")
        self.close()
        raise RunError(f"The process of '{self.target}' says nothing within {seconds:g} s")

    def close(self) -> None:
        """End the process, if there is one; the next call starts another."""
        process, self._process = self._process, None
        atexit.unregister(self.close)
        if process is not None and self._owner == os.getpid():
            with contextlib.suppress(OSError):
                process.kill()

    def __reduce__(self) -> tuple[Any, ...]:
        return Apart, (self.target, self.runs_text, self.recipe)
