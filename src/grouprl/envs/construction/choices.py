"""Selections without a place: a knapsack, and an assignment of entities to tasks."""

from __future__ import annotations

import numpy as np

from grouprl.envs.construction.exact import Solution, best_assignment, best_value
from grouprl.envs.construction.problem import Building, ConstructionProblem, Instance, Rest, View

CERTAIN_ITEMS, CERTAIN_TASKS = 60, 12
"""Largest numbers of items and of tasks for which the best selection is computed exactly."""
FULL = 0.25
"""Capacity of a knapsack per item, where weights are uniform in [0, 1]: 25 for 100 items (POMO's instances)."""


class _Selection(Building):
    def __init__(self, value_n: np.ndarray, weight_n: np.ndarray, capacity: float) -> None:
        self._value_n, self._weight_n, self._capacity, self._left = value_n, weight_n, capacity, capacity
        self.chosen: list[int] = []
        self._open = np.ones(len(value_n), dtype=bool)

    def legal(self) -> np.ndarray:
        """Return the items that still fit."""
        return self._open & (self._weight_n <= self._left + 1e-9)

    def take(self, node: int) -> None:
        """Pack an item."""
        self._open[node] = False
        self._left -= float(self._weight_n[node])
        self.chosen.append(node)

    def view(self) -> View:
        """Return which items are open, the share of the remaining room that each takes, and the remaining room."""
        # Cut at 2: an item above 1 does not fit, and in a knapsack that is nearly full shares would be huge numbers.
        share_n = np.minimum(self._weight_n / max(self._left, 1e-9), 2.0)
        nodes_nd = np.stack([self._open, share_n], -1)
        here = self.chosen[-1] if self.chosen else 0
        return View(here, nodes_nd, np.array([self._left / self._capacity]))

    def cost(self) -> float:
        """Return the negative of the value."""
        return -float(self._value_n[self.chosen].sum())

    def rest(self, map_nf: np.ndarray) -> Rest:
        """Return the items that still fit, each with the share that it takes of the room left."""
        share_n = self._weight_n / max(self._left, 1e-9)
        return Rest(self.legal(), np.concatenate([map_nf, share_n[:, None]], -1))


class KnapsackProblem(ConstructionProblem):
    """The most valuable of `size` items within a capacity of a quarter of their number; values and weights are uniform
    in [0, 1] (POMO's instances).

    Instances have `value` [N], `weight` [N] and `capacity` [1].
    """

    name, words = "knapsack", ("items", "value")
    features, changing, summary, rest_features = 2, 2, 1, 3
    gain = True

    @property
    def longest(self) -> int:
        """All items."""
        return self.size

    def sample(self, luck: np.random.Generator) -> Instance:
        """Return uniform values and weights, at least one of which fits."""
        weight_n, capacity = luck.random(self.size), FULL * self.size
        return {"value": luck.random(self.size), "weight": weight_n, "capacity": np.array([max(capacity, 1.0)])}

    def map_of(self, instance: Instance) -> np.ndarray:
        """Return values and weights."""
        return np.stack([instance["value"], instance["weight"]], -1)

    def begin(self, instance: Instance, luck: np.random.Generator) -> Building:
        """Begin with an empty knapsack."""
        return _Selection(instance["value"], instance["weight"], float(instance["capacity"][0]))

    def solution(self, instance: Instance) -> Solution | None:
        """Return the most valuable of at most 60 items."""
        if self.size > CERTAIN_ITEMS:
            return None
        return best_value(instance["value"], instance["weight"], float(instance["capacity"][0]))

    def continued(self, choices: list[int], building: Building, luck: np.random.Generator) -> list[int]:
        """Return the items in a drawn order."""
        found: list[int] = luck.permutation(choices).tolist()
        return found


class _Matching(Building):
    def __init__(self, cost_nn: np.ndarray) -> None:
        self._cost_nn, self.chosen = cost_nn, []
        self._open = np.ones(len(cost_nn), dtype=bool)

    def legal(self) -> np.ndarray:
        """Return the tasks that no entity has."""
        return self._open.copy()

    def take(self, node: int) -> None:
        """Give a task to the entity whose turn it is."""
        self._open[node] = False
        self.chosen.append(node)

    def view(self) -> View:
        """Return each task's cost for this entity, whether it is open, and its mean and least cost for the entities
        after it.
        """
        row = min(len(self.chosen), len(self._cost_nn) - 1)
        later_kn = self._cost_nn[row + 1 :] if row + 1 < len(self._cost_nn) else self._cost_nn[row:]
        nodes_nd = np.stack([self._cost_nn[row], self._open, later_kn.mean(0), later_kn.min(0)], -1)
        return View(self.chosen[-1] if self.chosen else 0, nodes_nd, np.array([self._open.mean()]))

    def cost(self) -> float:
        """Return the sum of the costs."""
        return float(self._cost_nn[np.arange(len(self.chosen)), self.chosen].sum())


class Assignment(ConstructionProblem):
    """The cheapest way to give each of `size` entities a task of its own; entity and task are points of the unit square
    with attributes, and a cost is their distance.

    Instances have `entity` [N,2] and `task` [N,2].
    """

    name, words = "assignment", ("tasks of entity 1, 2 …:", "distance")
    features, changing, summary = 2, 4, 1

    @property
    def longest(self) -> int:
        """One choice per entity."""
        return self.size

    def sample(self, luck: np.random.Generator) -> Instance:
        """Return uniform entities and tasks."""
        return {"entity": luck.random((self.size, 2)), "task": luck.random((self.size, 2))}

    def map_of(self, instance: Instance) -> np.ndarray:
        """Return the tasks."""
        return instance["task"]

    def begin(self, instance: Instance, luck: np.random.Generator) -> Building:
        """Let entity 0 choose first."""
        return _Matching(costs(instance))

    def solution(self, instance: Instance) -> Solution | None:
        """Return the best assignment of at most 12 tasks."""
        return best_assignment(costs(instance)) if self.size <= CERTAIN_TASKS else None


def costs(instance: Instance) -> np.ndarray:
    """Return the distance [N,N] of each entity from each task."""
    found: np.ndarray = np.linalg.norm(instance["entity"][:, None] - instance["task"][None], axis=-1)
    return found
