"""Instances in the format of TSPLIB and CVRPLIB, as the package vrplib writes and reads it."""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.construction.edge_weights import EDGE_WEIGHTS
from grouprl.envs.construction.problem import ConstructionProblem, Instance, solved
from grouprl.envs.construction.tours import Cvrp, Tsp

ENDINGS = (".vrp", ".tsp")
SECTIONS = ("NODE_COORD", "DEMAND", "DEPOT", "DISPLAY_DATA")
"""The sections that are read, and the one that changes no solution; any other would."""
REMARKS = ("NAME", "COMMENT")
"""Facts that a file may have on several lines."""
LIMITS = {
    "DISTANCE": ("a route may be of any length", "Take an instance without the limit"),
    "VEHICLES": ("there may be any number of routes", "Delete the line, if that is meant"),
}
"""Facts that rule solutions out, and are not supported: for each, what holds instead, and the remedy."""


class _Parts(NamedTuple):
    path: Path
    facts: dict[str, str]
    """The values of lines "NAME : value"."""
    sections: dict[str, list[list[str]]]
    """The lines of "NAME_SECTION", in words."""

    def refused(self, what: str, rule: str, remedy: str = "") -> InputError:
        return InputError(f"'{self.path.name}' has {what}", rule, remedy)


def read_instance(path: str | Path) -> tuple[ConstructionProblem, Instance]:
    """Return the problem of a file, and its instance; the file of the same name that ends in .sol has the best known
    cost.

    Raises:
        InputError: there is no such file, or it holds something else than a TSP or CVRP with places.
    """
    place = Path(path)
    if not place.is_file():
        raise InputError(f"there is no file '{path}'", f"an instance is a file that ends in {' or '.join(ENDINGS)}")
    parts = _parts(place)
    kind = _kind(parts)
    place_n2 = _numbers(parts, "NODE_COORD", _dimension(parts, kind), 3)
    instance = {"place": place_n2, "distance": _distances(parts, place_n2)}
    if kind == "TSP":
        problem: ConstructionProblem = Tsp(len(place_n2))
    else:
        problem, instance = Cvrp(len(place_n2) - 1), instance | _loads(parts, len(place_n2))
    return problem, instance | _best_known(place.with_suffix(".sol"), problem, instance)


def _parts(path: Path) -> _Parts:
    """Split a file into its facts and its sections; comments may be in any encoding."""
    found = _Parts(path, {}, {})
    lines: list[list[str]] | None = None
    for line in map(str.strip, path.read_text(encoding="utf-8-sig", errors="replace").splitlines()):
        if line == "EOF":
            break
        name, colon, value = (part.strip() for part in line.partition(":"))
        if name.endswith("_SECTION") and not value:
            lines = found.sections.setdefault(name.removesuffix("_SECTION"), [])
        elif colon:
            if found.facts.setdefault(name, value) != value and name not in REMARKS:
                raise found.refused(
                    f"{name} : {found.facts[name]} and {name} : {value}", "an instance may say it only once"
                )
            lines = None
        elif line and lines is not None:
            lines.append(line.split())
    return found


def _kind(parts: _Parts) -> str:
    kind, *_ = [*parts.facts.get("TYPE", "").upper().split(), "(none)"]
    if kind not in ("TSP", "CVRP"):
        raise parts.refused(f"the TYPE {kind}", "it must be TSP or CVRP")
    others = sorted(set(parts.sections) - set(SECTIONS))
    if others:
        raise parts.refused(f"{others[0]}_SECTION", f"this section is not supported; known are {', '.join(SECTIONS)}")
    for name in LIMITS:
        if name in parts.facts:
            raise parts.refused(f"{name} : {parts.facts[name]}", *LIMITS[name])
    return kind


def _distances(parts: _Parts, place_n2: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        found = EDGE_WEIGHTS[_edge_weights(parts)](place_n2)
    if not np.isfinite(found).all():
        raise parts.refused("places whose distance is not a finite number", "a tour has a length", "Scale the places")
    return found


def _edge_weights(parts: _Parts) -> str:
    kind = parts.facts.get("EDGE_WEIGHT_TYPE", "")
    if kind not in EDGE_WEIGHTS:
        raise parts.refused(
            f"EDGE_WEIGHT_TYPE {kind or '(none)'}",
            f"a policy sees places, and distances follow from them: {', '.join(EDGE_WEIGHTS)}",
        )
    return kind


def _dimension(parts: _Parts, kind: str) -> int:
    words = parts.facts.get("DIMENSION", "")
    least = Tsp.smallest if kind == "TSP" else Cvrp.smallest + 1
    if not words.isdecimal() or int(words) < least:
        raise parts.refused(f"DIMENSION {words or '(none)'}", f"it is the number of nodes, at least {least}")
    return int(words)


def _numbers(parts: _Parts, name: str, nodes: int, width: int) -> np.ndarray:
    """Return the numbers [N,width-1] that a section gives for each node; its lines may be in any order."""
    lines = parts.sections.get(name, [])
    rule = f"for each node from 1 to DIMENSION {nodes} it has one line of {width} finite numbers, the node first"
    told = [line for line in lines if len(line) != width or not all(map(_finite, line))]
    if told:
        raise parts.refused(f"the line '{' '.join(told[0])}' in {name}_SECTION", rule)
    found = np.array([[float(word) for word in line] for line in lines]).reshape(-1, width)
    found = found[found[:, 0].argsort(kind="stable")]
    if len(found) != nodes or (found[:, 0] != np.arange(1, nodes + 1)).any():
        raise parts.refused(f"{len(lines)} lines in {name}_SECTION", rule, _first_difference(found[:, 0], nodes))
    return found[:, 1:]


def _finite(word: str) -> bool:
    try:
        return bool(np.isfinite(float(word)))
    except ValueError:
        return False


def _first_difference(node_n: np.ndarray, nodes: int) -> str:
    told = node_n.tolist()
    twice = [node for node, after in pairwise(told) if node == after]
    if twice:
        return f"Node {twice[0]:g} is there twice"
    absent = next((node for node in range(1, nodes + 1) if node not in told), None)
    return f"Node {absent} is absent" if absent else f"Node {told[-1]:g} is above DIMENSION"


def _loads(parts: _Parts, nodes: int) -> dict[str, np.ndarray]:
    if "CAPACITY" not in parts.facts or "DEMAND" not in parts.sections:
        raise parts.refused("no CAPACITY and DEMAND_SECTION", "a CVRP has both", "A TSP says TYPE : TSP")
    words = parts.facts["CAPACITY"]
    if not _finite(words) or float(words) != max(1, round(float(words))):
        raise parts.refused(f"CAPACITY {words}", "it is a whole number above 0")
    depots = [word for word in chain.from_iterable(parts.sections.get("DEPOT", [["1"]])) if word != "-1"]
    if depots != ["1"]:
        raise parts.refused(f"the depots {', '.join(depots) or '(none)'}", "there must be one, node 1")
    capacity, demand_n = float(words), _numbers(parts, "DEMAND", nodes, 2)[:, 0]
    wrong_n = (demand_n < 0) | (demand_n > capacity) | (demand_n % 1 != 0)
    wrong_n[0] = demand_n[0] != 0
    if wrong_n.any():
        node = int(wrong_n.argmax())
        raise parts.refused(
            f"the demand {demand_n[node]:g} of node {node + 1}",
            f"the depot has 0, a customer a whole number from 0 to the capacity {capacity:g}",
        )
    return {"demand": demand_n, "capacity": np.array([capacity])}


def _best_known(path: Path, problem: ConstructionProblem, instance: Instance) -> dict[str, np.ndarray]:
    """Return the cost that a solution file states, which the routes in it must have."""
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8-sig", errors="replace").lower().replace(":", " ").splitlines()
    words = [line.split() for line in lines]
    costs = [line[1] for line in words if len(line) == 2 and line[0] == "cost"]
    if not costs or not _finite(costs[0]) or float(costs[0]) < 0:
        raise InputError(
            f"'{path.name}' has no line 'Cost NUMBER'", "a file of a solution says its cost, which is 0 or more"
        )
    best, routes = float(costs[0]), [line[2:] for line in words if line[:1] == ["route"] and line[2:]]
    if routes and isinstance(problem, Cvrp) and (cost := _cost_of(path, routes, problem, instance)) != best:
        raise InputError(
            f"'{path.name}' says Cost {best:g}, and its routes cost {cost:g}",
            "gaps are percent above the cost, with distances rounded as EDGE_WEIGHT_TYPE says",
            "Correct the cost, or take the file away",
        )
    return {"best": np.array([best])}


def _cost_of(path: Path, routes: list[list[str]], problem: ConstructionProblem, instance: Instance) -> float:
    try:
        choices = [node for route in routes for node in (*map(int, route), 0)][:-1]
        return solved(problem, instance, choices)
    except (ValueError, IndexError) as error:
        raise InputError(f"'{path.name}' has routes that are not a solution: {error}", "customers are 1, 2 …") from None
