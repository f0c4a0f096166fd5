"""Hosts, which start workers, and the worker's side of a call."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from grouprl.core.errors import GrouprlError, InputError, RunError

Kind = Literal["sampler", "reward", "environment", "learner"]
WORKERS: Mapping[str, str] = {
    "sampler": "grouprl.orchestrator.on_ray.sampler:SamplingWorker",
    "reward": "grouprl.orchestrator.on_ray.reward:ScoringWorker",
    "environment": "grouprl.orchestrator.on_ray.remote_environments:ActingWorker",
    "learner": "grouprl.orchestrator.on_ray.learner_node:LearnerRoom",
}
"""By kind of worker: the class that its process builds."""
PRESENT = "present"
"""The name of the call that only checks whether the worker has started."""


Ticket = Hashable
"""A host's handle of a call."""


@dataclass(frozen=True)
class Hello:
    """The setup of a worker: search paths for modules and files, and the arguments of its kind."""

    path: tuple[str, ...]
    folder: str
    values: object


class WorkerLost(Exception):
    """A worker's process or its node has ended."""


class Shared(Protocol):
    """A value stored for every worker to read."""

    def get(self) -> object:
        """Return the value; its arrays are not copied and cannot be modified."""
        ...


class WorkerHost(Protocol):
    """A host starts workers and passes calls on to them, one at a time for each; when a worker ends, its calls are
    lost.
    """

    def start(self, kind: Kind, number: int) -> object:
        """Start a worker without waiting for it."""
        ...

    def call(self, worker: object, method: str, arguments: tuple[object, ...]) -> Ticket:
        """Begin a call and return its handle, for `ready` and `reply`."""
        ...

    def ready(self, calls: Sequence[Ticket], seconds: float) -> list[Ticket]:
        """Return the calls that have ended, after waiting at most `seconds` for the first."""
        ...

    def reply(self, call: Ticket) -> Reply:
        """Return the result of a call that has ended. Raises WorkerLost."""
        ...

    def end(self, worker: object) -> None:
        """Kill a worker at once."""
        ...

    def share(self, value: object) -> Shared:
        """Store a value where all workers can read it; it is released with the last reference to it."""
        ...

    def close(self) -> None:
        """Shut down everything that was started; may be called twice."""
        ...


@dataclass(frozen=True)
class Reply:
    """The result of a call: a value, or an error."""

    value: object = None
    refused: tuple[str, str, str] | None = None
    """An `InputError` in the worker: value, rule, remedy."""
    failed: str = ""
    """The message of any other error in the worker, with its traceback if it was unexpected."""

    def taken(self, who: str) -> object:
        """Return the value, or raise the worker's error."""
        if self.refused is not None:
            raise InputError(*self.refused)
        if self.failed:
            raise RunError(f"{who}: {self.failed}")
        return self.value


class WorkerRoom:
    """A worker's process: it makes the worker on the first call, so that every error becomes a reply."""

    def __init__(self, kind: Kind, hello: Shared) -> None:
        self._kind, self._hello = kind, hello
        self._worker: object = None

    def call(self, method: str, arguments: tuple[object, ...]) -> Reply:
        """Call a method of the worker."""
        try:
            if self._worker is None:
                self._worker = made(self._kind, cast("Hello", self._hello.get()))
            if method == PRESENT:
                return Reply(os.getpid())
            return Reply(getattr(self._worker, method)(*arguments))
        except InputError as error:
            return Reply(refused=(error.what, error.rule, error.remedy))
        except GrouprlError as error:
            return Reply(failed=str(error))
        except Exception as error:
            return Reply(failed="".join(traceback.format_exception(type(error), error, error.__traceback__)))


def made(kind: Kind, hello: Hello) -> object:
    """Return a worker of this kind, made from the setup in `hello`."""
    sys.path[:] = [*sys.path, *(entry for entry in hello.path if entry not in sys.path)]
    if os.path.isdir(hello.folder):
        os.chdir(hello.folder)
    module, _, name = WORKERS[kind].partition(":")
    worker: object = getattr(importlib.import_module(module), name)(hello.values)
    return worker


def hello_of(values: object) -> Hello:
    """Return `values` as a worker's setup, with the search paths for modules and files added."""
    here = os.getcwd()
    return Hello(tuple(here if entry == "" else entry for entry in sys.path), here, values)
