"""Solve the instances of a file by OR-Tools, in an environment of its own: nothing of grouprl is imported.

Run `PYTHON scripts/ortools_solve.py FILE` with a list of {problem, and its arrays}; prints, for each, the choices in
the order in which they are built, and whether the solver proved that nothing is better.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ortools.constraint_solver import pywrapcp, routing_enums_pb2
from ortools.sat.python import cp_model

SECONDS, UNITS = 20.0, 10**6
"""What CP-SAT may take for an instance, and the whole number that 1 becomes."""
ROUTE_SOLUTIONS = 300
"""Solutions that the routing search looks at, in place of a clock."""

Found = tuple[list[int], bool]


def whole(value: float) -> int:
    """Return a number in units."""
    return round(value * UNITS)


def solver() -> cp_model.CpSolver:
    """Return CP-SAT with one thread and a seed."""
    made = cp_model.CpSolver()
    made.parameters.max_time_in_seconds = SECONDS
    made.parameters.num_workers = 1
    made.parameters.random_seed = 0
    return made


def solve(model: cp_model.CpModel) -> tuple[cp_model.CpSolver, bool]:
    """Return the solver with a solution, and whether it is proven to be the best."""
    found = solver()
    status = found.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise RuntimeError(f"no solution: {found.status_name(status)}")
    return found, status == cp_model.OPTIMAL


def job_shop(given: dict[str, Any]) -> Found:
    """Return the jobs in the order in which their operations begin."""
    model, end = cp_model.CpModel(), cp_model.CpModel.new_int_var
    latest = sum(whole(time) for row in given["time"] for time in row)
    makespan = end(model, 0, latest, "makespan")
    machines: dict[int, list[cp_model.IntervalVar]] = {}
    begins: list[tuple[cp_model.IntVar, int, int]] = []
    for job, (machine_k, time_k) in enumerate(zip(given["machine"], given["time"], strict=True)):
        ready: Any = 0
        for step, (machine, time) in enumerate(zip(machine_k, time_k, strict=True)):
            begin = model.new_int_var(0, latest, f"{job} {step}")
            machines.setdefault(machine, []).append(
                model.new_interval_var(begin, whole(time), begin + whole(time), f"on {job} {step}")
            )
            model.add(begin >= ready)
            ready = begin + whole(time)
            begins.append((begin, job, step))
        model.add(makespan >= ready)
    for intervals in machines.values():
        model.add_no_overlap(intervals)
    model.minimize(makespan)
    found, proven = solve(model)
    return [job for _, job, _ in sorted((found.value(begin), job, step) for begin, job, step in begins)], proven


def knapsack(given: dict[str, Any]) -> Found:
    """Return the items; weights are rounded up, so that they fit."""
    model = cp_model.CpModel()
    takes = [model.new_bool_var(str(item)) for item in range(len(given["value"]))]
    weights = [-int(-weight * UNITS // 1) for weight in given["weight"]]
    model.add(sum(w * take for w, take in zip(weights, takes, strict=True)) <= int(given["capacity"][0] * UNITS))
    model.maximize(sum(whole(value) * take for value, take in zip(given["value"], takes, strict=True)))
    found, proven = solve(model)
    return [item for item, take in enumerate(takes) if found.value(take)], proven


def distances(place_n2: list[list[float]]) -> list[list[int]]:
    """Return the distances between places, in units."""
    return [[whole(((x - u) ** 2 + (y - v) ** 2) ** 0.5) for u, v in place_n2] for x, y in place_n2]


def tsp(given: dict[str, Any]) -> Found:
    """Return the round trip from city 0, by a circuit of CP-SAT."""
    model, far = cp_model.CpModel(), distances(given["place"])
    ways = {(i, j): model.new_bool_var(f"{i} {j}") for i in range(len(far)) for j in range(len(far)) if i != j}
    model.add_circuit([(i, j, way) for (i, j), way in ways.items()])
    model.minimize(sum(far[i][j] * way for (i, j), way in ways.items()))
    found, proven = solve(model)
    after = {i: j for (i, j), way in ways.items() if found.value(way)}
    trip = [0]
    while (onward := after[trip[-1]]) != 0:
        trip.append(onward)
    return trip, proven


def cvrp(given: dict[str, Any]) -> Found:
    """Return the customers of all routes with the depot between them, by guided local search: nothing is proven."""
    far, count = distances(given["place"]), len(given["place"])
    manager = pywrapcp.RoutingIndexManager(count, count - 1, 0)
    routing = pywrapcp.RoutingModel(manager)
    node = manager.IndexToNode
    routing.SetArcCostEvaluatorOfAllVehicles(routing.RegisterTransitCallback(lambda i, j: far[node(i)][node(j)]))
    demand = routing.RegisterUnaryTransitCallback(lambda i: int(given["demand"][node(i)]))
    routing.AddDimensionWithVehicleCapacity(demand, 0, [int(given["capacity"][0])] * (count - 1), True, "load")
    asked = pywrapcp.DefaultRoutingSearchParameters()
    asked.first_solution_strategy = routing_enums_pb2.FirstSolutionStrategy.SAVINGS
    asked.local_search_metaheuristic = routing_enums_pb2.LocalSearchMetaheuristic.GUIDED_LOCAL_SEARCH
    asked.solution_limit = ROUTE_SOLUTIONS
    found = routing.SolveWithParameters(asked)
    choices: list[int] = []
    for vehicle in range(count - 1):
        at, route = found.Value(routing.NextVar(routing.Start(vehicle))), []
        while not routing.IsEnd(at):
            route.append(node(at))
            at = found.Value(routing.NextVar(at))
        choices += [*route, 0] if route else []
    return choices[:-1], False


SOLVERS = {"job_shop": job_shop, "knapsack": knapsack, "tsp": tsp, "cvrp": cvrp}

if __name__ == "__main__":
    asked_for = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps([SOLVERS[given["problem"]](given) for given in asked_for]))
