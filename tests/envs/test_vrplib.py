"""Instances in vrplib's format: lengths against known optima, costs by hand, and malformed files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grouprl.config.run import load_config
from grouprl.core.errors import InputError
from grouprl.envs.construction import ConstructionWorld
from grouprl.envs.construction.edge_weights import EDGE_WEIGHTS
from grouprl.envs.construction.exact import best_tour
from grouprl.envs.construction.tours import seen_length
from grouprl.envs.construction.vrplib import read_instance
from grouprl.tasks import load_task

VRP = """NAME : small
TYPE : CVRP
DIMENSION : 4
EDGE_WEIGHT_TYPE : EUC_2D
CAPACITY : 4
NODE_COORD_SECTION
1 0 0
2 10 0
3 10 10
4 0 10
DEMAND_SECTION
1 0
2 2
3 2
4 2
DEPOT_SECTION
 1
 -1
EOF
"""


def test_files_in_vrplibs_format_are_read_with_their_rounding(tmp_path: Path) -> None:
    (tmp_path / "small.vrp").write_text(VRP)
    problem, instance = read_instance(tmp_path / "small.vrp")
    assert problem.best(instance) == 54  # 10 + 10 + 14 (√200 = 14.14…), and 20
    (tmp_path / "small.sol").write_text("Route #1: 1 2\nRoute #2: 3\nCost 54\n")
    task = load_task({"name": f"construct:{tmp_path / 'small.vrp'}", "gap": True})
    world = task.environment()
    world.reset(task.example("train", 0), 0)
    for node in (1, 0, 2, 0, 3):
        step = world.step(node)
    assert step.reward == -(20 + 28 + 20)
    assert world.score() == {"#gap_percent": pytest.approx(100 * (68 - 54) / 54)}


def test_a_file_is_found_beside_the_configuration_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "small.vrp").write_text(VRP)
    (tmp_path / "run.yaml").write_text("task: 'construct:small.vrp'\nmodel: {name: pointer}\nmethod: rloo\n")
    task = load_task(load_config(str(tmp_path / "run.yaml")).task)
    assert task.of.nodes == 4
    assert task.name == "construct:small.vrp"
    assert load_task("construct:tsp").name == "construct:tsp"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (VRP, "", "the TYPE \\(none\\)"),
        ("TYPE : CVRP", "TYPE : VRPTW", "must be TSP or CVRP"),
        ("EUC_2D", "EXPLICIT", "EUC_2D, CEIL_2D"),
        ("CAPACITY : 4\n", "", "no CAPACITY"),
        ("CAPACITY : 4", "CAPACITY : 0", "whole number above 0"),
        ("CAPACITY : 4", "CAPACITY : inf", "whole number above 0"),
        ("CAPACITY", "DISTANCE : 200\nCAPACITY", "A route may be of any length"),
        ("CAPACITY", "VEHICLES : 2\nCAPACITY", "VEHICLES : 2.*any number of routes"),
        ("CAPACITY", "CAPACITY : 9\nCAPACITY", "CAPACITY : 9 and CAPACITY : 4"),
        ("EOF", "TIME_WINDOW_SECTION\n1 0 9\n", "has TIME_WINDOW_SECTION"),
        ("DIMENSION : 4\n", "", "DIMENSION \\(none\\)"),
        ("DIMENSION : 4", "DIMENSION : 2", "at least 3"),
        ("DIMENSION : 4", "DIMENSION : 5", "Node 5 is absent"),
        ("DIMENSION : 4", "DIMENSION : 99999999999", "Node 5 is absent"),
        ("DIMENSION : 4", "DIMENSION : 3", "Node 4 is above DIMENSION"),
        ("3 10 10", "3 1e200 10", "not a finite number"),
        ("3 10 10", "2 10 10", "Node 2 is there twice"),
        ("4 2\nDEPOT", "DEPOT", "3 lines in DEMAND_SECTION.*Node 4 is absent"),
        ("3 2\n", "3 9\n", "demand 9 of node 3"),
        ("3 2\n", "3 -2\n", "demand -2 of node 3"),
        ("3 2\n", "3 1.5\n", "demand 1.5 of node 3"),
        ("1 0\n", "1 3\n", "The depot has 0"),
        (" 1\n -1", " 2\n -1", "There must be one"),
        (" 1\n -1", " -1", "depots \\(none\\)"),
        ("2 10 0", "2 ten 0", "line '2 ten 0' in NODE_COORD_SECTION"),
        ("2 10 0", "2 nan 0", "line '2 nan 0' in NODE_COORD_SECTION"),
        ("2 10 0", "2 10", "line '2 10' in NODE_COORD_SECTION"),
    ],
)
def test_files_that_are_something_else_are_told(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in VRP
    (tmp_path / "bad.vrp").write_text(VRP.replace(before, after))
    with pytest.raises(InputError, match=said):
        read_instance(tmp_path / "bad.vrp")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("\n", "\r\n"),
        ("NAME : small", "\ufeffNAME : small"),
        ("NAME : small", "COMMENT : a DEMAND_SECTION, and so on"),
        ("NAME : small", "COMMENT : one\nCOMMENT : two"),
        ("CAPACITY : 4", "CAPACITY : 4\nCAPACITY : 4"),
        (" 1\n -1", " 1 -1"),
        ("DEPOT_SECTION\n 1\n -1\n", ""),
        ("2 10 0\n3 10 10\n", "3 1e1 10.0\n2 10 0\n"),
        ("CAPACITY : 4", "CAPACITY: 4.0"),
        ("EOF\n", "EOF\nwhatever follows"),
    ],
)
def test_ways_to_write_the_same_instance(tmp_path: Path, before: str, after: str) -> None:
    assert before in VRP
    (tmp_path / "small.vrp").write_bytes(VRP.replace(before, after).encode())
    problem, instance = read_instance(tmp_path / "small.vrp")
    assert problem.best(instance) == 54
    assert instance["place"].tolist() == [[0, 0], [10, 0], [10, 10], [0, 10]]


def test_a_comment_may_be_in_any_encoding(tmp_path: Path) -> None:
    (tmp_path / "small.vrp").write_bytes(VRP.replace("small", "été").encode("latin-1"))
    assert read_instance(tmp_path / "small.vrp")[0].nodes == 4


def test_distances_are_those_of_tsplib() -> None:
    """burma14 of TSPLIB, whose shortest tour is known to be 3323 long; the others by hand: sides 3 and 4.5 apart."""
    north = (16.47, 16.47, 20.09, 22.39, 25.23, 22.00, 20.47, 17.20, 16.30, 14.05, 16.53, 21.52, 19.41, 20.09)
    east = (96.10, 94.44, 92.54, 93.37, 97.24, 96.05, 97.02, 96.29, 97.38, 98.12, 97.38, 95.59, 97.13, 94.55)
    assert best_tour(EDGE_WEIGHTS["GEO"](np.array([north, east]).T)).cost == 3323
    lengths = {name: length(np.array([[0, 0], [3, 4.5]])).tolist() for name, length in EDGE_WEIGHTS.items()}
    assert all(found[0][0] == 0 and found[0][1] == found[1][0] for found in lengths.values())
    # √29.25 = 5.41, over √10 1.71; 7.5 and 4.5 round up
    expected = {"EUC_2D": 5, "CEIL_2D": 6, "FLOOR_2D": 5, "MAN_2D": 8, "MAX_2D": 5, "ATT": 2}
    assert {name: found[0][1] for name, found in lengths.items() if name != "GEO"} == expected
    assert EDGE_WEIGHTS["ATT"](np.array([[0, 0], [2, 6]]))[0, 1] == 2  # √(40/10), exactly


@pytest.mark.parametrize(
    ("solution", "said"),
    [
        ("Route #1: 1 2\n", "no line 'Cost NUMBER'"),
        ("Cost nothing\n", "no line 'Cost NUMBER'"),
        ("Cost -4\n", "no line 'Cost NUMBER'"),
        ("Route #1: 1 2\nRoute #2: 3\nCost 53.9\n", "says Cost 53.9, and its routes cost 54"),
        ("Route #1: 1 2 3\nCost 40\n", "not a solution.*node 3"),
        ("Route #1: 1 2\nCost 34\n", "not a whole solution"),
        ("Route #1: 1 9\nCost 34\n", "not a solution"),
        ("Route #1: a b\nCost 34\n", "not a solution"),
    ],
)
def test_solutions_that_are_none_are_told(tmp_path: Path, solution: str, said: str) -> None:
    (tmp_path / "small.vrp").write_text(VRP)
    (tmp_path / "small.sol").write_text(solution)
    with pytest.raises(InputError, match=said):
        read_instance(tmp_path / "small.vrp")


def test_a_gap_needs_a_cost_to_compare_with(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Set task\.solver to pyvrp"):
        load_task({"name": "construct:tsp", "count": 13, "gap": True})
    (tmp_path / "small.vrp").write_text(VRP)
    task = load_task({"name": f"construct:{tmp_path / 'small.vrp'}", "gap": True})
    assert task.instance(task.example("train", 0))["best"].tolist() == [54]  # there is no .sol: it is computed, once


def test_a_file_has_its_gap_to_a_search(tmp_path: Path) -> None:
    pytest.importorskip("pyvrp", reason="pyvrp is not installed: pip install 'grouprl[routing]'")
    lines = [f"{k + 1} {10 * k} {10 * (k % 2)}" for k in range(16)]
    head = "TYPE: TSP\nDIMENSION: 16\nEDGE_WEIGHT_TYPE: EUC_2D\nNODE_COORD_SECTION\n"
    (tmp_path / "large.tsp").write_text(head + "\n".join(lines))
    task = load_task({"name": f"construct:{tmp_path / 'large.tsp'}", "gap": True, "solver": "pyvrp"})
    world = task.environment()
    world.reset(task.example("train", 0), 0)
    while world.building.legal().any():
        step = world.step(int(np.flatnonzero(world.building.legal())[0]))
    assert world.score()["#gap_percent"] > 0
    assert ", best " in step.observation.text


def test_a_search_ends_in_its_time_and_otherwise_as_without_a_limit() -> None:
    pytest.importorskip("pyvrp", reason="pyvrp is not installed: pip install 'grouprl[routing]'")
    with pytest.raises(InputError, match="solver_seconds = 1 with the solver 'exact'"):
        load_task({"name": "construct:tsp", "solver_seconds": 1})
    free, ample, none = (
        load_task({"name": "construct:tsp", "count": 60, "solver": "pyvrp", **more})
        for more in ({}, {"solver_seconds": 600}, {"solver_seconds": 1e-4})
    )
    instance = free.instance(free.example("train", 0))
    whole, same, first = (each.best_of(instance) for each in (free, ample, none))
    assert whole is not None
    assert whole == same
    assert first is not None
    assert first.cost > whole.cost  # what there is after the first look at the clock


def test_a_policy_sees_lengths_in_units_of_the_map(tmp_path: Path) -> None:
    (tmp_path / "small.vrp").write_text(VRP)
    problem, instance = read_instance(tmp_path / "small.vrp")
    assert seen_length(instance)[0] == pytest.approx([0, 10 / 14 * 2**0.5, 2**0.5, 10 / 14 * 2**0.5])
    world = ConstructionWorld(problem, lambda example: instance)
    seen = world.reset(load_task("construct:tsp").example("train", 0), 0).values["nodes"]
    assert np.abs(seen).max() < 1.5


def test_unknown_problems_and_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'cvrp'"):
        load_task("construct:cvpr")
    with pytest.raises(InputError, match="there is no file"):
        load_task(f"construct:{tmp_path / 'none.tsp'}")
