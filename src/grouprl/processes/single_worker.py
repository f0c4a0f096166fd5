"""One worker, which serves one caller at a time: started when first needed, and replaced if it does not answer."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from grouprl.core.errors import RunError
from grouprl.processes.frames import BadReply
from grouprl.processes.worker_process import START_SECONDS, WorkerProcess, WorkerSpec
from grouprl.processes.worker_slot import WorkerLoss


class SingleWorker:
    """A worker that sends ["ready"], then answers each call with one reply; `name` states its purpose in messages.

    Callers in several threads take turns. A fork of this process has a worker of its own.
    """

    def __init__(self, spec: WorkerSpec, name: str) -> None:
        self.spec, self.name = spec, name
        self._lock, self._held = threading.Lock(), list[WorkerProcess]()
        self._finalizer = weakref.finalize(self, _end, self._held)
        _ALL.add(self)

    def ask(self, payload: bytes, seconds: float, beginning: Sequence[object] = ()) -> list[Any] | WorkerLoss:
        """Send a call and return the reply that starts with `beginning`; without one, return why the worker was ended.

        Raises:
            RunError: no worker can be started.
        """
        with self._lock:
            try:
                worker = self._started()
                worker.send(payload)
                found = _answer(worker, seconds, beginning)
            except BaseException:  # an interrupt: no caller is left for the reply that is under way
                _end(self._held)
                raise
            if isinstance(found, WorkerLoss):
                _end(self._held)
            return found

    def close(self) -> None:
        """End the worker, if there is one; the next call starts another."""
        with self._lock:
            _end(self._held)

    def forget(self) -> None:
        """Leave the worker to the parent of this fork, where another thread may have held the lock."""
        self._lock = threading.Lock()
        self._held.clear()

    def _started(self) -> WorkerProcess:
        if not self._held:
            try:
                self._held.append(WorkerProcess(self.spec))
            except OSError as error:
                raise RunError(f"No process for {self.name} can be started: {error}") from error
            found = _answer(self._held[0], START_SECONDS, ["ready"])
            if isinstance(found, WorkerLoss):
                why = found.at_start(found.what)
                said = self._held[0].last_output()[-1000:]
                raise RunError(f"The process for {self.name} did not start: {why}. {said or 'It printed nothing'}")
        return self._held[0]


def _answer(worker: WorkerProcess, seconds: float, beginning: Sequence[object]) -> list[Any] | WorkerLoss:
    try:
        found = worker.next_reply(seconds, beginning)
    except BadReply as error:
        return WorkerLoss("wrong", str(error))
    if found is not None:
        return found
    return WorkerLoss("ended", worker.how_it_ended()) if worker.ended() else WorkerLoss("late")


def _end(held: list[WorkerProcess]) -> None:
    while held:
        held.pop().kill()


_ALL: weakref.WeakSet[SingleWorker] = weakref.WeakSet()


def _forget_all() -> None:
    for each in list(_ALL):
        each.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
