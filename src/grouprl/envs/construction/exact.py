"""Exact solutions of small instances, by dynamic programming over subsets."""

from __future__ import annotations

import numpy as np


def best_tour(far_nn: np.ndarray) -> float:
    """Return the length of the shortest round trip (Held and Karp 1962): 2^(N-1)·N² steps.

    `reach[s, j]` is the shortest path from node 0 through the set s of others that ends in j.
    """
    return float(_round_trips(far_nn)[-1])


def _round_trips(far_nn: np.ndarray) -> np.ndarray:
    """Return [2^(N-1)] the shortest round trip from node 0 through each set of the others."""
    count = len(far_nn) - 1
    inner_mm, home_m = far_nn[1:, 1:], far_nn[1:, 0]
    reach = np.full((1 << count, count), np.inf)
    reach[1 << np.arange(count), np.arange(count)] = far_nn[0, 1:]
    bits_m = 1 << np.arange(count)
    for chosen in range(1, 1 << count):
        outside_m = (chosen & bits_m) == 0
        onward_m = (reach[chosen][:, None] + inner_mm).min(0)
        after = chosen | bits_m[outside_m]
        reach[after, outside_m] = np.minimum(reach[after, outside_m], onward_m[outside_m])
    trips = (reach + home_m).min(1)
    trips[0] = 0.0
    return trips


def best_routes(far_nn: np.ndarray, demand_n: np.ndarray, capacity: float) -> float:
    """Return the shortest set of round trips from node 0 that serve all others within the capacity.

    Every set of customers that fits is a possible route; sets are put together by dynamic programming, 3^(N-1) steps.
    """
    count = len(far_nn) - 1
    load = (((np.arange(1 << count)[:, None] >> np.arange(count)) & 1) * demand_n[1:]).sum(1)
    route = np.where(load <= capacity + 1e-9, _round_trips(far_nn), np.inf)
    best = np.full(1 << count, np.inf)
    best[0] = 0.0
    for chosen in range(1, 1 << count):
        lowest, part = chosen & -chosen, chosen
        while part:  # the customer of the lowest number is in one of the routes: the parts that hold it are enough
            if part & lowest:
                best[chosen] = min(best[chosen], route[part] + best[chosen ^ part])
            part = (part - 1) & chosen
    return float(best[-1])


def best_value(value_n: np.ndarray, weight_n: np.ndarray, capacity: float) -> float:
    """Return the largest value of items whose weights are within the capacity.

    Partial selections of which another is at once lighter and worth more are dropped (Nemhauser and Ullmann 1969), so
    that weights need not be whole numbers.
    """
    front = [(0.0, 0.0)]  # by rising weight, each worth more than all before it
    for value, weight in zip(value_n.tolist(), weight_n.tolist(), strict=True):
        added = [(w + weight, v + value) for w, v in front if w + weight <= capacity + 1e-9]
        front = _undominated([*front, *added])
    return front[-1][1]


def _undominated(found: list[tuple[float, float]]) -> list[tuple[float, float]]:
    kept: list[tuple[float, float]] = []
    for weight, value in sorted(found, key=lambda each: (each[0], -each[1])):
        if not kept or value > kept[-1][1]:
            kept.append((weight, value))
    return kept


def best_assignment(cost_nn: np.ndarray) -> float:
    """Return the lowest sum of costs with each row assigned to a column of its own: 2^N·N steps."""
    count = len(cost_nn)
    best = np.full(1 << count, np.inf)
    best[0] = 0.0
    for taken in range(1 << count):
        row = taken.bit_count()
        for column in range(count):
            if not taken >> column & 1:
                after = taken | 1 << column
                best[after] = min(best[after], best[taken] + cost_nn[row, column])
    return float(best[-1])


def best_makespan(machine_jk: np.ndarray, time_jk: np.ndarray) -> float:
    """Return the shortest makespan of a job shop by branch and bound over semi-active schedules.

    A branch ends where the work that is left of a job, or for a machine, cannot end before the best schedule so far.
    """
    jobs, steps = machine_jk.shape
    tail_jk = np.cumsum(time_jk[:, ::-1], 1)[:, ::-1]
    load_m = np.bincount(machine_jk.ravel(), time_jk.ravel())
    best = [float(time_jk.sum())]

    def search(done: list[int], job: list[float], machine: list[float], work: list[float]) -> None:
        open_jobs = [j for j in range(jobs) if done[j] < steps]
        if not open_jobs:
            best[0] = min(best[0], max(job))
            return
        if (
            max(max(job[j] + tail_jk[j, done[j]] for j in open_jobs), *map(sum, zip(machine, work, strict=True)))
            >= best[0]
        ):
            return
        for j in sorted(open_jobs, key=lambda j: max(job[j], machine[machine_jk[j, done[j]]])):
            m, length = int(machine_jk[j, done[j]]), float(time_jk[j, done[j]])
            end = max(job[j], machine[m]) + length
            after = [*done[:j], done[j] + 1, *done[j + 1 :]]
            search(after, [*job[:j], end, *job[j + 1 :]], _set(machine, m, end), _set(work, m, work[m] - length))

    search([0] * jobs, [0.0] * jobs, [0.0] * len(load_m), load_m.tolist())
    return best[0]


def _set(values: list[float], at: int, value: float) -> list[float]:
    return [*values[:at], value, *values[at + 1 :]]
