"""Solutions of instances that are too large to be solved exactly, by a search of PyVRP: nothing is proven of them."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from grouprl.core.errors import InputError, MissingExtra
from grouprl.envs.construction.exact import Solution
from grouprl.envs.construction.problem import ConstructionProblem, Instance, solved
from grouprl.envs.construction.tours import DEPOT, Cvrp, Tsp, length_of

ITERATIONS = 300
"""Steps of the iterated local search: of up to 12 cities it finds the shortest tour."""
LONGEST = 1e4
"""The whole number that the longest distance becomes for PyVRP; far above it, its penalties do not suffice."""


def searched(
    problem: ConstructionProblem, instance: Instance, iterations: int = ITERATIONS, seconds: float | None = None
) -> Solution:
    """Return a good solution of a TSP or CVRP of any size; the same one every time, unless `seconds` end the search.

    Raises:
        InputError: another problem, or no routes were found in time.
        MissingExtra: PyVRP is not installed.
    """
    if not isinstance(problem, Cvrp | Tsp):
        raise InputError(f"PyVRP for {problem.name}", "it searches tours and routes: tsp, cvrp")
    far_nn = length_of(instance)
    if isinstance(problem, Tsp):
        choices = [DEPOT, *_routes(far_nn, np.zeros(len(far_nn)), 0, 1, iterations, seconds)]
        return Solution(float(far_nn[choices, np.roll(choices, -1)].sum()), choices)
    capacity = int(instance["capacity"][0])
    choices = _routes(far_nn, instance["demand"], capacity, len(far_nn) - 1, iterations, seconds)
    return Solution(solved(problem, instance, choices), choices)


def _routes(
    far_nn: np.ndarray, demand_n: np.ndarray, capacity: int, vehicles: int, iterations: int, seconds: float | None
) -> list[int]:
    """Return the customers of all routes in their order, with a visit to the depot between any two routes."""
    pyvrp = _library()
    model = pyvrp.Model()
    places = [model.add_location(0, 0) for _ in far_nn]
    model.add_depot(places[DEPOT])
    for node in range(1, len(far_nn)):
        model.add_client(places[node], delivery=int(demand_n[node]))
    model.add_vehicle_type(vehicles, capacity=capacity)
    units = LONGEST / max(float(far_nn.max()), 1e-12)
    for here, there in np.argwhere(~np.eye(len(far_nn), dtype=bool)).tolist():
        model.add_edge(places[here], places[there], distance=round(float(far_nn[here, there]) * units))
    ends = [pyvrp.stop.MaxIterations(iterations), *([] if seconds is None else [pyvrp.stop.MaxRuntime(seconds)])]
    found = model.solve(pyvrp.stop.MultipleCriteria(ends), seed=0, collect_stats=False, display=False)
    if not found.is_feasible():
        raise InputError(
            f"PyVRP found no routes in {found.num_iterations} of {iterations} steps",
            "every customer must fit a vehicle",
            "" if seconds is None else "Set task.solver_seconds higher, or leave it out",
        )
    routes = [[visit.idx + 1 for visit in route if visit.is_client()] for route in found.best.routes()]
    return [node for route in routes for node in (*route, DEPOT)][:-1]


def _library() -> ModuleType:
    try:
        import pyvrp
        import pyvrp.stop
    except ImportError as error:
        raise MissingExtra("pyvrp", "routing", "The search of tours and routes") from error
    return pyvrp
