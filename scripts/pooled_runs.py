"""Runs in processes that each make many: a short run takes hardly longer than a process takes to start."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from queue import PriorityQueue
from threading import Lock, Thread
from types import TracebackType
from typing import Any

import torch

from grouprl.core.json_types import JsonObject
from grouprl.experiments.budget import Budget
from grouprl.experiments.design import Trial
from grouprl.experiments.run_outcome import RunOutcome
from grouprl.experiments.schedule import Store, Tell
from grouprl.experiments.trial_main import RUN, make_run, write_spec
from grouprl.processes.limits import die_with
from grouprl.storage.run_folder import settle


class PooledStore(Store):
    """A store whose processes make many runs each."""

    def outcomes(self, trials: Sequence[Trial], tell: Tell) -> dict[str, RunOutcome]:
        """Return the outcome of every run by its key, after making those that are missing; only those are told of."""
        missing = self.missing(trials)
        for each in missing:
            settle(each.folder(self.folder))
            write_spec(each.folder(self.folder), each.settings, each.budget)
        with processes(self.workers, "fork") as pool:
            made = pool.map(make_run, [each.folder(self.folder) for each in missing])
            for each, _ in zip(missing, made, strict=True):
                tell(each, super().outcomes([each], silent)[each.key], False)
        return super().outcomes(trials, silent)


def silent(_trial: Trial, _outcome: RunOutcome, _known: bool) -> None:
    """Say nothing of a run."""


@contextmanager
def processes(workers: int, method: str) -> Iterator[ProcessPoolExecutor]:
    """Yield processes that end with this one; after an interruption they end their runs, and begin no others.

    Args:
        workers: how many.
        method: how they begin: "fork", or "spawn" for those that use a GPU, which a forked process cannot.
    """
    lifeline, held = os.pipe()
    inherited = held if method == "fork" else None
    begin = {"mp_context": get_context(method), "initializer": _end_with_parent, "initargs": (lifeline, inherited)}
    pool = ProcessPoolExecutor(workers, **begin)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        os.close(lifeline)
        os.close(held)


def _end_with_parent(lifeline: int, inherited: int | None) -> None:
    if inherited is not None:
        os.close(inherited)
    own = os.open(f"/proc/{os.getppid()}/fd/{lifeline}", os.O_RDONLY)  # of its own, as a description has one owner
    os.setsid()
    die_with(own)


class RunQueue:
    """Makes runs in spawned processes; of those that wait, the one of the lowest rank begins next.

    A process that is killed, for want of memory for instance, fails its run alone and is replaced.
    """

    def __init__(self, workers: int) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self._waiting: PriorityQueue[tuple[float, int, Future[Any] | None, tuple[Any, ...]]] = PriorityQueue()
        self._futures: dict[str, Future[Any]] = {}
        self._lock, self._order = Lock(), itertools.count()
        self._threads = [Thread(target=self._serve, daemon=True) for _ in range(workers)]
        for each in self._threads:
            each.start()

    def __enter__(self) -> RunQueue:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Let runs end that have begun, and begin no others."""
        for _ in self._threads:
            self._waiting.put((float("-inf"), next(self._order), None, ()))
        for each in self._threads:
            each.join()

    def submit(self, rank: float, key: str, make: Callable[..., Any], *given: object) -> Future[Any]:
        """Have `make(*given)` called in a process, once per key; asked for again, its lowest rank counts."""
        with self._lock:
            future = self._futures.setdefault(key, Future())
        self._waiting.put((rank, next(self._order), future, (make, *given)))
        return future

    def _serve(self) -> None:
        alive = False
        while not alive:  # a process that was killed is replaced
            with processes(1, "spawn") as pool:
                alive = self._make_all(pool)

    def _make_all(self, pool: ProcessPoolExecutor) -> bool:
        """Make runs until there is an end to them; return whether the process has not been killed."""
        while (taken := self._waiting.get())[2] is not None:
            _, _, future, call = taken
            if not self._begins(future):
                continue
            try:
                future.set_result(pool.submit(*call).result())
            except BrokenProcessPool as error:
                future.set_exception(error)
                return False
            except Exception as error:  # whoever asked for the run is told
                future.set_exception(error)
        return True

    def _begins(self, future: Future[Any]) -> bool:
        """Return whether a run is to be made now; the first that asks is told so."""
        with self._lock:
            return not (future.running() or future.done()) and future.set_running_or_notify_cancel()


@dataclass(frozen=True)
class QueuedStore(Store):
    """A store for comparisons that are made at the same time, from a queue that they share.

    Of a finished run the checkpoints and the model are removed: those of a pretrained model fill a disk.
    """

    queue: RunQueue = field(kw_only=True)
    rank: float = 0
    """The rank of this comparison's runs in the queue."""

    def outcomes(self, trials: Sequence[Trial], tell: Tell) -> dict[str, RunOutcome]:
        """Return the outcome of every run by its key, after making those that are missing; only those are told of."""
        missing = self.missing(trials)
        made = [self._submitted(each) for each in missing]
        for each, future in zip(missing, made, strict=True):
            future.result()
            tell(each, super().outcomes([each], silent)[each.key], False)
        return super().outcomes(trials, silent)

    def _submitted(self, trial: Trial) -> Future[Any]:
        call = (make_alone, trial.folder(self.folder), trial.settings, trial.budget)
        return self.queue.submit(self.rank, trial.key, *call)


def make_alone(folder: Path, settings: JsonObject, budget: Budget) -> None:
    """Make, or continue, the run of a folder, and remove what only its continuation needs."""
    settle(folder)
    write_spec(folder, settings, budget)
    begun = time.perf_counter()
    make_run(folder)
    leave_numbers(folder / RUN)
    print(f"{folder.name}: {time.perf_counter() - begun:.1f} s", flush=True)


def leave_numbers(run: Path, names: Sequence[str] = ("checkpoints", "model")) -> None:
    """Remove folders of a finished run, and what its process holds of a GPU's memory."""
    for name in names:
        shutil.rmtree(run / name, ignore_errors=True)
    gc.collect()
    torch.cuda.empty_cache()
