"""A job shop: operations of jobs on machines, each as early as it can begin."""

from __future__ import annotations

import numpy as np

from grouprl.envs.construction.exact import Solution, best_makespan
from grouprl.envs.construction.problem import Building, ConstructionProblem, Instance, View

MACHINES = 3
CERTAIN_JOBS = 4
"""Largest number of jobs on three machines for which the shortest schedule is computed exactly."""


class _Schedule(Building):
    """A semi-active schedule: an operation begins when its job and its machine are free."""

    def __init__(self, machine_jk: np.ndarray, time_jk: np.ndarray) -> None:
        self._machine_jk, self._time_jk, self.chosen = machine_jk, time_jk, []
        jobs, self._steps = machine_jk.shape
        self._done_j = np.zeros(jobs, dtype=np.int64)
        self._job_j, self._free_m = np.zeros(jobs), np.zeros(int(machine_jk.max()) + 1)
        self._scale = float(time_jk.sum()) / len(self._free_m)
        self.started: list[tuple[int, int, float, float]] = []
        """Job, machine, begin and end of each operation."""

    def legal(self) -> np.ndarray:
        """Return the jobs with operations left."""
        return self._done_j < self._steps

    def take(self, node: int) -> None:
        """Begin the next operation of a job."""
        machine, length = self._next(node)
        begin = max(float(self._job_j[node]), float(self._free_m[machine]))
        self._job_j[node] = self._free_m[machine] = begin + length
        self.started.append((node, machine, begin, begin + length))
        self._done_j[node] += 1
        self.chosen.append(node)

    def view(self) -> View:
        """Return for each job the length, the earliest start and the machine's remaining load of its next operation,
        and the work left.
        """
        rows = [self._seen(job) for job in range(len(self._job_j))]
        return View(self.chosen[-1] if self.chosen else 0, np.array(rows), self._free_m[:MACHINES] / self._scale)

    def cost(self) -> float:
        """Return the makespan."""
        return float(self._job_j.max())

    def _next(self, job: int) -> tuple[int, float]:
        step = int(self._done_j[job])
        return int(self._machine_jk[job, step]), float(self._time_jk[job, step])

    def _seen(self, job: int) -> list[float]:
        if self._done_j[job] == self._steps:
            return [0.0] * 5
        machine, length = self._next(job)
        step = int(self._done_j[job])
        begin, left = max(self._job_j[job], self._free_m[machine]), self._time_jk[job, step:].sum()
        load = sum(self._left_on(machine, each) for each in range(len(self._job_j)))
        return [1.0, length / self._scale, begin / self._scale, load / self._scale, left / self._scale]

    def _left_on(self, machine: int, job: int) -> float:
        step = int(self._done_j[job])
        return float(self._time_jk[job, step:][self._machine_jk[job, step:] == machine].sum())


class JobShop(ConstructionProblem):
    """The shortest schedule of `size` jobs with an operation on each of three machines, in an order of its own.

    A choice is a job, whose next operation begins as early as it can. Times are whole numbers from 1 to 99 (Taillard
    1993), given as shares of 99. Instances have `machine` [J,3] and `time` [J,3].
    """

    name, words = "job_shop", ("jobs", "makespan")
    features, changing, summary = 2 * MACHINES, 5, MACHINES

    @property
    def longest(self) -> int:
        """All operations."""
        return self.size * MACHINES

    def sample(self, luck: np.random.Generator) -> Instance:
        """Return a random order of the machines for each job, and uniform times."""
        order = np.stack([luck.permutation(MACHINES) for _ in range(self.size)])
        return {"machine": order, "time": luck.integers(1, 100, (self.size, MACHINES)) / 99}

    def map_of(self, instance: Instance) -> np.ndarray:
        """Return the machines and times of each job's operations."""
        return np.concatenate([instance["machine"] / MACHINES, instance["time"]], -1)

    def begin(self, instance: Instance, luck: np.random.Generator) -> Building:
        """Begin with nothing scheduled."""
        return _Schedule(instance["machine"], instance["time"])

    def solution(self, instance: Instance) -> Solution | None:
        """Return the shortest schedule of at most 4 jobs."""
        return best_makespan(instance["machine"], instance["time"]) if self.size <= CERTAIN_JOBS else None
