"""The choice of processes for environments: this process if they always return, otherwise workers with time limits."""

from __future__ import annotations

from typing import Literal

from grouprl.core.errors import InputError
from grouprl.envs.async_methods import close
from grouprl.envs.environment_pool import HereStage, PlayedTask, Stage
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.processes.parcel import CannotSend, refuse_system
from grouprl.processes.usage import core_count, free_memory

MOST_WORKERS = 8
"""The largest number of workers if the number is `auto`."""
MOST_WAITING = 64
"""The largest number of workers if they wait instead of computing, as far as memory allows."""
MEMORY_SHARE = 0.75
"""Share of the free memory that processes started by environments may take."""


def open_stage(
    task: PlayedTask,
    workers: int | Literal["auto"] = 0,
    *,
    timeout: float = 60.0,
    memory_gb: float = 4.0,
    most: int = MOST_WORKERS,
) -> tuple[Stage, str]:
    """Return the stage of a task's environments, and the reason why it is not in workers although it should be.

    `workers` is the number of processes; 0 means this process; "auto" means this process if the environment is part of
    this package, otherwise `automatic(task, most)`.

    Raises:
        CannotSend: a number of workers is set, and the task cannot be sent to them.
    """
    if workers not in (0, "auto") and getattr(task, "scores_groups", False):
        raise InputError(
            f"Environments act in workers, and rewards of the task '{task.name}' compare the episodes of a group",
            "its environments must act in one process, which holds a whole group",
            "Leave environment.workers out, or set it to 0",
        )
    if workers == 0 or (workers == "auto" and harmless(task)):
        return HereStage(task.environment), ""
    try:
        refuse_system()
        count, more = automatic(task, most) if workers == "auto" else (workers, None)
        return WorkerStage(task, count, timeout=timeout, memory_gb=memory_gb, most=more), ""
    except CannotSend as error:
        if workers != "auto":
            raise
        said = f"{error} It acts in this process: environment.timeout has no effect, and a hang stops the run."
        return HereStage(task.environment), said


def automatic(task: PlayedTask, most: int = MOST_WORKERS) -> tuple[int, int | None]:
    """Return how many workers `auto` starts, and to how many they may grow while they wait (None: not at all).

    There is one per core, at most `most`. Where environments start processes themselves (`started_gb`), those compute
    while the worker waits: there are never more workers than cores, nor than fit into three quarters of the free
    memory, and never less than one.
    """
    count = min(most, core_count())
    if (heavy := getattr(task, "started_gb", 0.0)) > 0:
        free = free_memory()
        fitting = count if free is None else int(MEMORY_SHARE * free / (heavy * 2**30))
        return max(1, min(count, fitting)), None
    return count, None if most < MOST_WORKERS else MOST_WAITING


def harmless(task: PlayedTask) -> bool:
    """Return whether a task and its environment belong to this package and run no foreign code, so that calls always
    return.
    """
    if task.needs_clock:
        return False
    example = task.environment()
    inner = getattr(example, "_inner", example)
    if example is not None:
        close(example)
    return all(type(each).__module__.startswith("grouprl.") for each in (task, example, inner))
