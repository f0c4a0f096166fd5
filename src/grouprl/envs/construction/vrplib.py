"""Instances in the format of TSPLIB and CVRPLIB, as the package vrplib writes and reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.construction.problem import ConstructionProblem, Instance
from grouprl.envs.construction.tours import Cvrp, Tsp, distances

ENDINGS = (".vrp", ".tsp")
ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "EUC_2D": lambda far_nn: np.floor(far_nn + 0.5),
    "CEIL_2D": np.ceil,
}
"""The rounding of distances to whole numbers, by TSPLIB's names."""


def read_instance(path: str | Path) -> tuple[ConstructionProblem, Instance]:
    """Return the problem of a file, and its instance; the file of the same name that ends in .sol has the best known
    cost.

    Raises:
        InputError: there is no such file, or it holds something else than a TSP or CVRP with places.
    """
    place = Path(path)
    if not place.is_file():
        raise InputError(f"there is no file '{path}'", f"an instance is a file that ends in {' or '.join(ENDINGS)}")
    facts, sections = _parts(place.read_text(encoding="utf-8"))
    kind = facts.get("EDGE_WEIGHT_TYPE", "")
    if kind not in ROUNDING or "NODE_COORD" not in sections:
        raise InputError(
            f"'{place.name}' has EDGE_WEIGHT_TYPE {kind or '(none)'}", f"it must have places and {', '.join(ROUNDING)}"
        )
    coordinates_n3 = _rows(place, sections["NODE_COORD"], 3)
    instance = {"place": coordinates_n3[:, 1:], "distance": ROUNDING[kind](distances(coordinates_n3[:, 1:]))}
    instance |= _best_known(place.with_suffix(".sol"))
    if facts.get("TYPE", "").upper() == "TSP":
        return Tsp(len(coordinates_n3)), instance
    return Cvrp(len(coordinates_n3) - 1), instance | _loads(place, facts, sections)


def _parts(text: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Split a file into its facts, "NAME : value", and the lines of its sections, "NAME_SECTION"."""
    facts: dict[str, str] = {}
    sections: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in map(str.strip, text.splitlines()):
        if line in ("", "EOF"):
            continue
        if line.rstrip(" :").endswith("_SECTION"):
            lines = sections.setdefault(line.rstrip(" :").removesuffix("_SECTION"), [])
        elif ":" in line:
            name, _, value = line.partition(":")
            facts[name.strip()], lines = value.strip(), None
        elif lines is not None:
            lines.append(line)
    return facts, sections


def _rows(path: Path, lines: list[str], width: int) -> np.ndarray:
    try:
        found = np.array([[float(word) for word in line.split()] for line in lines])
    except ValueError as error:
        raise InputError(f"'{path.name}' cannot be read: {error}", f"a line has {width} numbers") from None
    if found.ndim != 2 or found.shape[1] != width:
        raise InputError(f"'{path.name}' has a section of the shape {found.shape}", f"a line has {width} numbers")
    return found


def _loads(path: Path, facts: dict[str, str], sections: dict[str, list[str]]) -> dict[str, np.ndarray]:
    if not facts.get("CAPACITY", "").isdecimal() or "DEMAND" not in sections:
        raise InputError(
            f"'{path.name}' has no CAPACITY and DEMAND_SECTION", "a CVRP has both", "A TSP says TYPE : TSP"
        )
    depots = [line for line in sections.get("DEPOT", ["1"]) if line != "-1"]
    if depots != ["1"]:
        raise InputError(f"'{path.name}' has the depots {', '.join(depots)}", "there must be one, node 1")
    demand_n, capacity = _rows(path, sections["DEMAND"], 2)[:, 1], float(facts["CAPACITY"])
    if demand_n[0] != 0 or demand_n.max() > capacity:
        raise InputError(
            f"'{path.name}' has the demands {demand_n[0]:g} at the depot and {demand_n.max():g} at most",
            f"the depot has none, and no customer more than the capacity {capacity:g}",
        )
    return {"demand": demand_n, "capacity": np.array([capacity])}


def _best_known(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        return {}
    words = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    costs = [float(line[1]) for line in words if len(line) == 2 and line[0].lower() == "cost"]
    if not costs:
        raise InputError(f"'{path.name}' has no line 'Cost …'", "a file of a solution says its cost")
    return {"best": np.array([costs[0]])}
