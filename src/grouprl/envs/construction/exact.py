"""Exact solutions of small instances, by dynamic programming over subsets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Solution(NamedTuple):
    """A complete solution of an instance."""

    cost: float
    choices: list[int]
    """The nodes in the order in which a `Building` would choose them, its own beginning left out."""


def best_tour(far_nn: np.ndarray) -> Solution:
    """Return the shortest round trip from node 0 (Held and Karp 1962): 2^(N-1)·N² steps."""
    reach, home_m = _paths(far_nn), far_nn[1:, 0]
    return Solution(float((reach[-1] + home_m).min()), _way(reach, far_nn, len(reach) - 1))


def _way(reach: np.ndarray, far_nn: np.ndarray, through: int) -> list[int]:
    """Return the order of the nodes of the set `through` on the shortest round trip from node 0."""
    back: list[int] = []
    onward_m = far_nn[1:, 0]
    while through:
        last = int((reach[through] + onward_m).argmin())
        back.append(last + 1)
        through, onward_m = through ^ (1 << last), far_nn[1:, last + 1]
    return back[::-1]


def _paths(far_nn: np.ndarray) -> np.ndarray:
    """Return the length [2^(N-1), N-1] of the shortest path from node 0 through each set of the others to each of its
    nodes.
    """
    count = len(far_nn) - 1
    inner_mm = far_nn[1:, 1:]
    reach = np.full((1 << count, count), np.inf)
    reach[1 << np.arange(count), np.arange(count)] = far_nn[0, 1:]
    bits_m = 1 << np.arange(count)
    for chosen in range(1, 1 << count):
        outside_m = (chosen & bits_m) == 0
        onward_m = (reach[chosen][:, None] + inner_mm).min(0)
        after = chosen | bits_m[outside_m]
        reach[after, outside_m] = np.minimum(reach[after, outside_m], onward_m[outside_m])
    return reach


def best_routes(far_nn: np.ndarray, demand_n: np.ndarray, capacity: float) -> Solution:
    """Return the shortest set of round trips from node 0 that serve all others within the capacity.

    Every set of customers that fits is a possible route; sets are put together by dynamic programming, 3^(N-1) steps.
    Between two routes is a visit to node 0.
    """
    count = len(far_nn) - 1
    load = (((np.arange(1 << count)[:, None] >> np.arange(count)) & 1) * demand_n[1:]).sum(1)
    reach = _paths(far_nn)
    route = np.where(load <= capacity + 1e-9, (reach + far_nn[1:, 0]).min(1), np.inf)
    best, last = np.full(1 << count, np.inf), np.zeros(1 << count, dtype=np.int64)
    best[0] = 0.0
    for chosen in range(1, 1 << count):
        lowest, part = chosen & -chosen, chosen
        while part:  # the customer of the lowest number is in one of the routes: the parts that hold it are enough
            if part & lowest and (cost := route[part] + best[chosen ^ part]) < best[chosen]:
                best[chosen], last[chosen] = cost, part
            part = (part - 1) & chosen
    choices, chosen = [0], len(best) - 1
    while chosen:
        choices += [*_way(reach, far_nn, int(last[chosen])), 0]
        chosen ^= int(last[chosen])
    return Solution(float(best[-1]), choices[1:-1])


def best_value(value_n: np.ndarray, weight_n: np.ndarray, capacity: float) -> Solution:
    """Return the items of the largest value whose weights are within the capacity; its cost is the negative value.

    Partial selections of which another is at once lighter and worth more are dropped (Nemhauser and Ullmann 1969), so
    that weights need not be whole numbers.
    """
    front: list[_Partial] = [(0.0, 0.0, ())]  # by rising weight, each worth more than all before it
    for item, (value, weight) in enumerate(zip(value_n.tolist(), weight_n.tolist(), strict=True)):
        added = [(w + weight, v + value, (*items, item)) for w, v, items in front if w + weight <= capacity + 1e-9]
        front = _undominated([*front, *added])
    return Solution(-front[-1][1], list(front[-1][2]))


_Partial = tuple[float, float, tuple[int, ...]]
"""Weight, value and items of a partial selection."""


def _undominated(found: list[_Partial]) -> list[_Partial]:
    kept: list[_Partial] = []
    for each in sorted(found, key=lambda each: (each[0], -each[1])):
        if not kept or each[1] > kept[-1][1]:
            kept.append(each)
    return kept


def best_assignment(cost_nn: np.ndarray) -> Solution:
    """Return the lowest sum of costs with each row assigned to a column of its own: 2^N·N steps."""
    count = len(cost_nn)
    best, last = np.full(1 << count, np.inf), np.zeros(1 << count, dtype=np.int64)
    best[0] = 0.0
    for taken in range(1 << count):
        row = taken.bit_count()
        for column in range(count):
            after = taken | 1 << column
            if after != taken and (cost := best[taken] + cost_nn[row, column]) < best[after]:
                best[after], last[after] = cost, column
    choices, taken = [], len(best) - 1
    while taken:
        choices.append(int(last[taken]))
        taken ^= 1 << int(last[taken])
    return Solution(float(best[-1]), choices[::-1])


def best_makespan(machine_jk: np.ndarray, time_jk: np.ndarray) -> Solution:
    """Return the shortest schedule of a job shop by branch and bound over semi-active schedules.

    A branch ends where the work that is left of a job, or for a machine, cannot end before the best schedule so far.
    """
    jobs, steps = machine_jk.shape
    tail_jk = np.cumsum(time_jk[:, ::-1], 1)[:, ::-1]
    load_m = np.bincount(machine_jk.ravel(), time_jk.ravel())
    best = [Solution(float(time_jk.sum()), np.repeat(np.arange(jobs), steps).tolist())]
    order: list[int] = []

    def search(done: list[int], job: list[float], machine: list[float], work: list[float]) -> None:
        open_jobs = [j for j in range(jobs) if done[j] < steps]
        if not open_jobs:
            best[0] = min(best[0], Solution(max(job), [*order]))
            return
        if (
            max(max(job[j] + tail_jk[j, done[j]] for j in open_jobs), *map(sum, zip(machine, work, strict=True)))
            >= best[0].cost
        ):
            return
        for j in sorted(open_jobs, key=lambda j: max(job[j], machine[machine_jk[j, done[j]]])):
            m, length = int(machine_jk[j, done[j]]), float(time_jk[j, done[j]])
            end = max(job[j], machine[m]) + length
            after = [*done[:j], done[j] + 1, *done[j + 1 :]]
            order.append(j)
            search(after, [*job[:j], end, *job[j + 1 :]], _set(machine, m, end), _set(work, m, work[m] - length))
            order.pop()

    search([0] * jobs, [0.0] * jobs, [0.0] * len(load_m), load_m.tolist())
    return best[0]


def _set(values: list[float], at: int, value: float) -> list[float]:
    return [*values[:at], value, *values[at + 1 :]]
