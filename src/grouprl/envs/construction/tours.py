"""Tours through points of the plane: one salesman (TSP), vehicles with a capacity (CVRP)."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np

from grouprl.envs.construction.exact import Solution, best_routes, best_tour
from grouprl.envs.construction.problem import Building, ConstructionProblem, Instance, Rest, View
from grouprl.records.drawing import PlaneDrawing

DEPOT = 0
"""Number of the depot."""
CERTAIN_TOUR, CERTAIN_ROUTES = 12, 9
"""Largest numbers of cities and of customers for which the best solution is computed exactly."""


def distances(place_n2: np.ndarray) -> np.ndarray:
    """Return Euclidean distances [N,N]."""
    found: np.ndarray = np.linalg.norm(place_n2[:, None] - place_n2[None], axis=-1)
    return found


class _Tour(Building):
    """A round trip through all cities; what is seen of a city is its distance and whether it was visited."""

    def __init__(self, instance: Instance, start: int) -> None:
        far_nn = length_of(instance)
        self._far_nn, self._seen_nn, self.chosen = far_nn, seen_length(instance), [start]
        self._open = np.ones(len(far_nn), dtype=bool)
        self._open[start] = False

    def legal(self) -> np.ndarray:
        """Return the cities that were not visited."""
        return self._open.copy()

    def take(self, node: int) -> None:
        """Go to a city."""
        self._open[node] = False
        self.chosen.append(node)

    def view(self) -> View:
        """Return the distance of each city from here and from the first, and whether it is still open."""
        here, first = self.chosen[-1], self.chosen[0]
        nodes_nd = np.stack([self._seen_nn[here], self._seen_nn[first], self._open], -1)
        return View(here, nodes_nd, np.array([self._open.mean()]))

    def cost(self) -> float:
        """Return the length of the round trip."""
        path = np.array(self.chosen)
        return float(self._far_nn[path, np.roll(path, -1)].sum())

    def rest(self, map_nf: np.ndarray) -> Rest:
        """Return the shortest path that is left to find, from here through the open cities to the first."""
        ends = self.chosen[-1], self.chosen[0]
        left_n = self._open.copy()
        left_n[list(ends)] = True
        return Rest(left_n, map_nf, ends)


class Tsp(ConstructionProblem):
    """The shortest round trip through `size` cities, uniform in the unit square; a tour starts in any of them.

    Instances have `place` [N,2], and `distance` [N,N] where it is not the Euclidean one.
    """

    name, words = "tsp", ("tour", "length")
    smallest = 3
    features, changing, summary, rest_features = 2, 3, 1, 2

    @property
    def longest(self) -> int:
        """All cities but the first."""
        return self.size - 1

    def sample(self, luck: np.random.Generator) -> Instance:
        """Return uniform places."""
        return {"place": luck.random((self.size, 2))}

    def map_of(self, instance: Instance) -> np.ndarray:
        """Return the places, scaled into the unit square."""
        return unit(instance["place"])

    def begin(self, instance: Instance, luck: np.random.Generator) -> Building:
        """Start in a city that `luck` chooses: the several starts of POMO (Kwon et al. 2020), drawn, not counted."""
        return _Tour(instance, int(luck.integers(self.size)))

    def closed(self, building: Building) -> list[int]:
        """Return the tour and the way home."""
        return [*building.chosen, building.chosen[0]]

    def drawing(self, instance: Instance, choices: list[int]) -> PlaneDrawing:
        """Return the tour through its cities; the first one is marked."""
        return PlaneDrawing(instance["place"].tolist(), choices, choices[:1])

    def solution(self, instance: Instance) -> Solution | None:
        """Return the shortest tour of at most 12 cities (Held and Karp)."""
        if self.size > CERTAIN_TOUR:
            return None
        found = best_tour(length_of(instance))
        return Solution(found.cost, [0, *found.choices])

    def continued(self, choices: list[int], building: Building, luck: np.random.Generator) -> list[int]:
        """Return the tour from its first city on, in either direction."""
        place = choices.index(building.chosen[0])
        return [*choices[place + 1 :], *choices[:place]][:: luck.choice((1, -1))]


class _Routes(Building):
    """Routes from the depot and back, one after the other."""

    def __init__(self, instance: Instance) -> None:
        self._far_nn, self._seen_nn = length_of(instance), seen_length(instance)
        self._demand_n, self._capacity = instance["demand"], float(instance["capacity"][0])
        self.chosen, self._left = [DEPOT], self._capacity
        self._open = np.ones(len(self._far_nn), dtype=bool)
        self._open[DEPOT] = False

    def legal(self) -> np.ndarray:
        """Return the open customers that still fit, and the depot, unless the vehicle is at it."""
        legal_n: np.ndarray = self._open & (self._demand_n <= self._left + 1e-9)
        legal_n[DEPOT] = self.chosen[-1] != DEPOT and bool(self._open.any())
        return legal_n

    def take(self, node: int) -> None:
        """Serve a customer, or reload at the depot."""
        self._left = self._capacity if node == DEPOT else self._left - float(self._demand_n[node])
        self._open[node] = False
        self.chosen.append(node)

    def view(self) -> View:
        """Return distances from here and from the depot, which nodes are open, which fit, and the load that is left."""
        fits_n = self._demand_n <= self._left + 1e-9
        nodes_nd = np.stack([self._seen_nn[self.chosen[-1]], self._seen_nn[DEPOT], self._open, fits_n], -1)
        return View(self.chosen[-1], nodes_nd, np.array([self._left / self._capacity, self._open.mean()]))

    def cost(self) -> float:
        """Return the length of all routes, the way home included."""
        path = np.array([*self.chosen, DEPOT])
        return float(self._far_nn[path[:-1], path[1:]].sum())

    def rest(self, map_nf: np.ndarray) -> Rest:
        """Return the open customers between here and the depot, each beside the load that is left."""
        here, left_n = self.chosen[-1], self._open.copy()
        left_n[[here, DEPOT]] = True
        feature_nk = np.concatenate([map_nf, np.full((len(map_nf), 1), self._left / self._capacity)], -1)
        feature_nk[here, 2] = 0.0  # it was served
        return Rest(left_n, feature_nk, (here, DEPOT))


class Cvrp(ConstructionProblem):
    """The shortest routes of vehicles with a capacity that serve `size` customers from a depot, node 0.

    Demands are 1 to 9; a vehicle carries 20, 30, 40 or 50 units from 10, 20, 50 or 100 customers on (Nazari et al.,
    2018, Kool et al., 2019). Instances have `place` [N,2], `demand` [N], 0 for the depot, and `capacity` [1].

    *Differs from POMO*: no first customer is prescribed. The best routes need not begin with it.
    """

    name, words = "cvrp", ("routes", "length")
    features, changing, summary, rest_features = 3, 4, 2, 4

    @property
    def nodes(self) -> int:
        """The customers and the depot."""
        return self.size + 1

    @property
    def longest(self) -> int:
        """Every customer, with a visit to the depot between any two."""
        return 2 * self.size - 1

    @cached_property
    def capacity(self) -> float:
        """Units that a vehicle carries: 20, 30, 40, 50 from 10, 20, 50, 100 customers on."""
        return next(units for least, units in ((100, 50.0), (50, 40.0), (20, 30.0), (0, 20.0)) if self.size >= least)

    def sample(self, luck: np.random.Generator) -> Instance:
        """Return uniform places, and whole demands from 1 to 9."""
        place_n2, demand_n = luck.random((self.nodes, 2)), luck.integers(1, 10, self.nodes).astype(float)
        demand_n[DEPOT] = 0
        return {"place": place_n2, "demand": demand_n, "capacity": np.array([self.capacity])}

    def map_of(self, instance: Instance) -> np.ndarray:
        """Return the places, and the demands as shares of the capacity."""
        share_n = instance["demand"] / instance["capacity"]
        return np.concatenate([unit(instance["place"]), share_n[:, None]], -1)

    def begin(self, instance: Instance, luck: np.random.Generator) -> Building:
        """Start at the depot."""
        return _Routes(instance)

    def closed(self, building: Building) -> list[int]:
        """Return the routes, which begin and end at the depot."""
        return [*building.chosen, DEPOT]

    def drawing(self, instance: Instance, choices: list[int]) -> PlaneDrawing:
        """Return the routes between depot and customers."""
        return PlaneDrawing(instance["place"].tolist(), choices, [DEPOT])

    def solution(self, instance: Instance) -> Solution | None:
        """Return the shortest routes of at most 9 customers."""
        if self.size > CERTAIN_ROUTES:
            return None
        return best_routes(length_of(instance), instance["demand"], float(instance["capacity"][0]))

    def continued(self, choices: list[int], building: Building, luck: np.random.Generator) -> list[int]:
        """Return the routes in a drawn order, each in either direction."""
        cuts = [-1, *(place for place, node in enumerate(choices) if node == DEPOT), len(choices)]
        routes = [choices[begin + 1 : end][:: luck.choice((1, -1))] for begin, end in pairwise(cuts)]
        return [node for k in luck.permutation(len(routes)) for node in (*routes[k], DEPOT)][:-1]


def length_of(instance: Instance) -> np.ndarray:
    """Return the distances [N,N] of an instance: its own, or the Euclidean ones of its places."""
    return instance["distance"] if "distance" in instance else distances(instance["place"])


def seen_length(instance: Instance) -> np.ndarray:
    """Return distances [N,N] for a policy: those of an instance that has its own, in any unit, are scaled to the
    extent that its places have on the map.
    """
    far_nn = length_of(instance)
    if "distance" not in instance:
        return far_nn
    return far_nn * float(distances(unit(instance["place"])).max()) / max(float(far_nn.max()), 1e-12)


def unit(place_n2: np.ndarray) -> np.ndarray:
    """Return places shifted and scaled into the unit square where they leave it, their shape kept."""
    if place_n2.min() >= 0 and place_n2.max() <= 1:
        return place_n2
    low_2 = place_n2.min(0)
    return (place_n2 - low_2) / max(float((place_n2 - low_2).max()), 1e-12)
