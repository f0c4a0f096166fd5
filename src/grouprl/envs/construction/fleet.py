"""A fleet whose vehicles choose their next customers all at once: routes of PARCO, and of CAMP with preferences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.construction.tours import DEPOT, distances
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import ArraySpace, Box, DictSpace, MultiDiscrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example

CAPACITIES, SPEEDS, DEMANDS = (20, 41), (0.5, 1.0), (1, 10)
"""Ranges that instances are drawn from, uniformly: whole capacities and demands, the upper end left out; speeds."""
WAYS = 8
"""Symmetries of a square."""


class DeliveryFleet:
    """Serve all customers by vehicles of different capacity and speed, so that the slowest is home soon (HCVRP).

    In a round every vehicle picks a node: a customer that fits its load, the depot, or where it is. A customer that
    several pick is served by the one with the best rank, the others stay (the conflict handler of PARCO,
    arXiv:2409.03811). An action is the K picks followed by the K ranks, 0 first; vehicles of one rank go by number.
    The vehicle that has travelled least and could move must, so that every round moves one. The reward, paid in the
    end, is the negative of the longest time that a vehicle is under way.

    The instance follows from the example alone. Which of the eight turned and mirrored maps is shown follows from the
    seed: with task.own_luck the samples of a group are solutions of turned copies, PARCO's augmentation.

    Args:
        customers: number of customers.
        vehicles: K, number of vehicles.

    Raises:
        InputError: no customers or no vehicles.
    """

    def __init__(self, customers: int = 8, vehicles: int = 3) -> None:
        if customers < 1 or vehicles < 1:
            raise InputError(f"{customers} customers, {vehicles} vehicles", "at least one of each is needed")
        self.nodes, self.vehicles = customers + 1, vehicles
        self.spaces = _spaces(self.nodes, vehicles)
        self.routes: list[list[int]] = []
        """The nodes of each vehicle so far, its first visit to the depot included."""
        self._context: dict[str, np.ndarray] = {}
        self._over, self._lost, self._moves = False, 0, 0

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Draw the instance of the example, and place every vehicle at the depot, fully loaded."""
        self.begin(self.drawn(np.random.default_rng(int(example.columns["seed"]))))
        way = int(np.random.default_rng([seed, 1]).integers(WAYS))
        self._context = self._shown_once(turned(self.place_n2, way))
        return self._shown(self._context)

    def drawn(self, luck: np.random.Generator) -> dict[str, np.ndarray]:
        """Return an instance: `place` [N,2], `demand` [N], `capacity` [K], `speed` [K], `profile` [K,N] of zeros."""
        demand_n = luck.integers(*DEMANDS, self.nodes).astype(float)
        demand_n[DEPOT] = 0
        return {
            "place": luck.random((self.nodes, 2)),
            "demand": demand_n,
            "capacity": luck.integers(*CAPACITIES, self.vehicles).astype(float),
            "speed": luck.uniform(*SPEEDS, self.vehicles),
            "profile": np.zeros((self.vehicles, self.nodes)),
        }

    def begin(self, instance: dict[str, np.ndarray]) -> None:
        """Begin an instance."""
        self.place_n2, self.demand_n = instance["place"], instance["demand"]
        self.capacity_k, self.speed_k, self.profile_kn = (instance[x] for x in ("capacity", "speed", "profile"))
        self._far_nn = distances(self.place_n2)
        self.routes = [[DEPOT] for _ in range(self.vehicles)]
        self._left_k, self.time_k = self.capacity_k.copy(), np.zeros(self.vehicles)
        self._open_n = np.ones(self.nodes, dtype=bool)
        self._open_n[DEPOT] = False

    def step(self, action: object) -> Step:
        """Move the vehicles. Raises InputError for picks that are not legal, and when the episode is over."""
        pick_k, rank_k = np.asarray(action).reshape(2, -1)
        legal_kn = self.legal()
        if self._over or not legal_kn[np.arange(self.vehicles), pick_k].all():
            raise InputError(
                f"the picks {pick_k.tolist()}",
                "each vehicle picks a legal node of an episode that is not over",
                f"The legal nodes are {[np.flatnonzero(legal_n).tolist() for legal_n in legal_kn]}",
            )
        for vehicle, node in enumerate(resolved(pick_k, rank_k, self._here()).tolist()):
            self._move(vehicle, node)
        self._lost += int((self._here() != pick_k).sum())
        self._moves += self.vehicles
        self._over = not self._open_n.any()
        return Step(self._shown({}), -self.cost() if self._over else 0.0, terminated=self._over)  # type: ignore[arg-type]

    def legal(self) -> np.ndarray:
        """Return [K,N] bool: the nodes that each vehicle may pick."""
        here_k, rows_k = self._here(), np.arange(self.vehicles)
        legal_kn = self.served_by() & self._open_n & (self.demand_n <= self._left_k[:, None] + 1e-9)
        legal_kn[:, DEPOT] = here_k != DEPOT
        movable_k = legal_kn.any(1)
        legal_kn[rows_k, here_k] = True
        if movable_k.any():
            first = int(np.where(movable_k, self.time_k, np.inf).argmin())
            legal_kn[first, here_k[first]] = False
        return legal_kn

    def served_by(self) -> np.ndarray:
        """Return [K,N] bool: the nodes that each vehicle may serve at all."""
        return np.ones((self.vehicles, self.nodes), dtype=bool)

    def times(self) -> np.ndarray:
        """Return the time [K] of each vehicle, its way home included."""
        found: np.ndarray = self.time_k + self._far_nn[self._here(), DEPOT] / self.speed_k
        return found

    def cost(self) -> float:
        """Return the longest time of a vehicle."""
        return float(self.times().max())

    def score(self) -> dict[str, float]:
        """Return the share of picks that were lost to another vehicle, as a count."""
        return {"#lost_picks": self._lost / self._moves} if self._moves else {}

    def close(self) -> None:
        """End the episode."""
        self._over = True

    def _here(self) -> np.ndarray:
        return np.array([route[-1] for route in self.routes])

    def _move(self, vehicle: int, node: int) -> None:
        here = self.routes[vehicle][-1]
        if node == here:
            return
        self.time_k[vehicle] += self._far_nn[here, node] / self.speed_k[vehicle]
        self._left_k[vehicle] = (
            self.capacity_k[vehicle] if node == DEPOT else self._left_k[vehicle] - self.demand_n[node]
        )
        self._open_n[node] = False
        self.routes[vehicle].append(node)

    def _shown_once(self, place_n2: np.ndarray) -> dict[str, np.ndarray]:
        largest = CAPACITIES[1]
        return {
            "map": np.concatenate([place_n2, self.demand_n[:, None] / largest], -1).astype(np.float32),
            "fleet": np.stack([self.capacity_k / largest, self.speed_k], -1).astype(np.float32),
            "profile": self.profile_kn.astype(np.float32),
        }

    def _shown(self, context: dict[str, np.ndarray]) -> ArrayObservation:
        legal_kn = self.legal()
        values = {
            "here": self._here(),
            "vehicles": np.stack([self._left_k / CAPACITIES[1], self.time_k], -1).astype(np.float32),
            "open": self._open_n.astype(np.float32),
        }
        ranks = np.ones(self.vehicles**2, dtype=bool)
        mask = np.concatenate([legal_kn.ravel(), ranks])
        words = " | ".join("-".join(map(str, [*route, DEPOT])) for route in self.routes) if self._over else ""
        return ArrayObservation(values, None if self._over else mask, context, text=words)


class ProfiledFleet(DeliveryFleet):
    """The same fleet whose vehicles suit customers more or less: less time altogether, more preference (CAMP).

    The reward is -Σ_k time_k + `weight`·Σ of the preferences, from 0 to 1, of those who serve for those they serve
    (PVRP-P, arXiv:2501.02977). With `forbidden` that share of the pairs is excluded (zones, PVRP-ZC), but for one
    vehicle of each customer, drawn.

    Args:
        customers: number of customers.
        vehicles: K, number of vehicles.
        weight: what a preference is worth, in units of time.
        forbidden: share of pairs of vehicle and customer that are excluded.

    Raises:
        InputError: a share that is not between 0 and 1, or what `DeliveryFleet` refuses.
    """

    def __init__(self, customers: int = 8, vehicles: int = 3, weight: float = 0.2, forbidden: float = 0.0) -> None:
        if not 0 <= forbidden < 1:
            raise InputError(f"forbidden = {forbidden}", "it must be a share of pairs, at least 0 and below 1")
        super().__init__(customers, vehicles)
        self._weight, self._forbidden = weight, forbidden

    def drawn(self, luck: np.random.Generator) -> dict[str, np.ndarray]:
        """Return an instance with uniform preferences; forbidden pairs have -1."""
        instance = super().drawn(luck)
        profile_kn = luck.random((self.vehicles, self.nodes))
        out_kn = luck.random(profile_kn.shape) < self._forbidden
        out_kn[luck.integers(self.vehicles, size=self.nodes), np.arange(self.nodes)] = False
        out_kn[:, DEPOT] = False
        profile_kn[:, DEPOT] = 0.0
        return {**instance, "profile": np.where(out_kn, -1.0, profile_kn)}

    def served_by(self) -> np.ndarray:
        """Return [K,N] bool: the pairs that are not forbidden."""
        found: np.ndarray = self.profile_kn >= 0
        return found

    def cost(self) -> float:
        """Return the time of all vehicles minus what the preferences are worth."""
        liked = sum(float(self.profile_kn[k, route].sum()) for k, route in enumerate(self.routes))
        return float(self.times().sum()) - self._weight * liked


def resolved(pick_k: np.ndarray, rank_k: np.ndarray, here_k: np.ndarray) -> np.ndarray:
    """Return the node [K] of each vehicle: of several that pick one customer the best ranked goes, the others stay.

    The depot, and the node where a vehicle is, are nobody else's to take.
    """
    # Where a vehicle that has not been looked at yet is now blocks nobody: such a customer is served, and not legal.
    found_k = here_k.copy()
    for vehicle in sorted(range(len(pick_k)), key=lambda k: (rank_k[k], k)):
        node = pick_k[vehicle]
        if node == DEPOT or node not in found_k:
            found_k[vehicle] = node
    return found_k


def turned(place_n2: np.ndarray, way: int) -> np.ndarray:
    """Return places of the unit square, turned by a multiple of 90 degrees and from way 4 on mirrored first."""
    found_n2 = place_n2[:, ::-1] if way >= WAYS // 2 else place_n2
    for _ in range(way % (WAYS // 2)):
        found_n2 = np.stack([found_n2[:, 1], 1 - found_n2[:, 0]], -1)
    return found_n2


def _spaces(nodes: int, vehicles: int) -> Spaces:
    seen: dict[str, ArraySpace] = {
        "here": MultiDiscrete((nodes,) * vehicles),
        "vehicles": Box((vehicles, 2)),
        "open": Box((nodes,)),
    }
    context: dict[str, ArraySpace] = {
        "map": Box((nodes, 3)),
        "fleet": Box((vehicles, 2)),
        "profile": Box((vehicles, nodes)),
    }
    action = MultiDiscrete((*(nodes,) * vehicles, *(vehicles,) * vehicles))
    return Spaces(DictSpace(seen), action, DictSpace(context))
