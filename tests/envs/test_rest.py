"""What is left of an instance: by hand, without a past, and solved by the rest of a best solution."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from grouprl.core.errors import InputError, MissingExtra
from grouprl.envs.construction import PROBLEMS, Cvrp, KnapsackProblem, Tsp
from grouprl.envs.construction.problem import solved
from grouprl.envs.construction.reference import searched
from grouprl.envs.construction.tours import distances
from grouprl.envs.construction.world import rest_numbers
from grouprl.tasks import load_task

SHRINKING = [name for name, each in PROBLEMS.items() if each.rest_features]
NEW = np.random.default_rng
SQUARE = {"place": np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])}
ROUTES = {**SQUARE, "demand": np.array([0.0, 2.0, 2.0, 2.0]), "capacity": np.array([4.0])}
SACK = {"value": np.array([3.0, 4.0, 5.0]), "weight": np.array([2.0, 3.0, 4.0]), "capacity": np.array([5.0])}


def after(problem, instance, choices):
    """A building in which some choices were made; a tour starts in city 0."""
    building = next(b for b in (problem.begin(instance, NEW(k)) for k in range(99)) if not b.chosen or b.chosen[0] == 0)
    for node in choices:
        building.take(node)
    return building


def seen(problem, instance, choices):
    return rest_numbers(after(problem, instance, choices).rest(problem.map_of(instance)), np.zeros(0))


def test_the_rests_of_small_instances_are_those_by_hand() -> None:
    # left, beginning, end, then the place: city 1 was passed on the way from 0 to 2, 3 is open, the tour ends in 0
    assert seen(Tsp(4), SQUARE, [1, 2]).tolist() == [[1, 0, 1, 0, 0], [0] * 5, [1, 1, 0, 1, 1], [1, 0, 0, 0, 1]]
    assert seen(Tsp(4), SQUARE, [])[0].tolist() == [1, 1, 1, 0, 0]
    # then the demand as a share of the capacity, and the load that is left; customer 1 was served
    assert seen(Cvrp(3), ROUTES, [1]).tolist() == [
        [1, 0, 1, 0, 0, 0, 0.5],
        [1, 1, 0, 1, 0, 0, 0.5],
        [1, 0, 0, 1, 1, 0.5, 0.5],
        [1, 0, 0, 0, 1, 0.5, 0.5],
    ]
    # value, weight and share of the room, 3 after item 0; item 2 no longer fits
    assert seen(KnapsackProblem(3), SACK, [0]).tolist() == [[0] * 6, [1, 0, 0, 4, 3, 1], [0] * 6]


def test_the_way_to_a_rest_is_forgotten() -> None:
    instance = Tsp(6).sample(NEW(0))
    assert (seen(Tsp(6), instance, [1, 2, 3]) == seen(Tsp(6), instance, [2, 1, 3])).all()
    assert (seen(Tsp(6), instance, [1, 2, 3]) != seen(Tsp(6), instance, [1, 3, 2])).any()
    routes = {**Cvrp(5).sample(NEW(1)), "demand": np.array([0.0, 3, 3, 3, 3, 3])}
    assert (seen(Cvrp(5), routes, [1, 3, 0, 2]) == seen(Cvrp(5), routes, [3, 0, 1, 0, 2])).all()
    assert (seen(Cvrp(5), routes, [1, 2, 3]) == seen(Cvrp(5), routes, [2, 1, 3])).all()
    items = KnapsackProblem(8).sample(NEW(2))
    np.testing.assert_allclose(seen(KnapsackProblem(8), items, [0, 3]), seen(KnapsackProblem(8), items, [3, 0]))


@pytest.mark.parametrize("name", PROBLEMS)
def test_solutions_are_whole_legal_and_cost_what_is_said(name: str) -> None:
    problem = PROBLEMS[name](4)
    for seed in range(8):
        instance, luck = problem.sample(NEW(seed)), NEW(seed)
        found, building = problem.solution(instance), problem.begin(instance, NEW(seed))
        assert found.cost == problem.best(instance)
        for node in problem.continued(found.choices, building, luck):
            assert building.legal()[node]
            building.take(node)
        assert not building.legal().any()
        assert building.cost() == pytest.approx(found.cost)


def test_orders_of_one_solution_are_drawn() -> None:
    instance = Cvrp(6).sample(NEW(0))
    instance = {**instance, "demand": np.array([0.0, 9, 9, 9, 9, 9, 9])}
    choices = Cvrp(6).solution(instance).choices
    orders = {tuple(Cvrp(6).continued(choices, Cvrp(6).begin(instance, NEW(0)), NEW(k))) for k in range(20)}
    assert len(orders) > 3
    assert {round(solved(Cvrp(6), instance, list(order)), 9) for order in orders} == {round(Cvrp(6).best(instance), 9)}
    tours = {
        tuple(Tsp(5).continued([0, 3, 1, 2, 4], after(Tsp(5), Tsp(5).sample(NEW(0)), []), NEW(k))) for k in range(9)
    }
    assert tours == {(3, 1, 2, 4), (4, 2, 1, 3)}


@pytest.mark.parametrize("name", SHRINKING)
def test_the_rest_of_a_best_solution_is_the_best_of_the_rest(name: str) -> None:
    """Bellman: from every beginning of a best solution its own end is the cheapest of all completions."""
    problem = PROBLEMS[name](5)
    instance = problem.sample(NEW(3))
    found = problem.solution(instance)
    start = [0] if name == "tsp" else []
    choices = found.choices[len(start) :]
    for place in range(len(choices)):
        cheapest = min(ends(problem, instance, choices[:place]))
        assert cheapest == pytest.approx(found.cost)


def ends(problem, instance, path):
    """The costs of all completions of a beginning."""
    legal = np.flatnonzero(after(problem, instance, path).legal()).tolist()
    if not legal:
        return [after(problem, instance, path).cost()]
    return [cost for node in legal for cost in ends(problem, instance, [*path, node])]


@pytest.mark.parametrize("name", SHRINKING)
def test_a_world_shows_rests_to_the_end(name: str) -> None:
    task = load_task({"name": f"construct:{name}", "count": 5, "state": "rest", "strategies": 2})
    world, example = task.environment(), task.example("train", 0)
    shown = world.reset(example, 1)
    assert shown.context == {}
    width = task.spaces.observation.spaces["rest"].shape
    while shown.legal is not None:
        rest = shown.values["rest"]
        assert rest.shape == width
        assert (rest[~(rest[:, 0] > 0)] == 0).all()
        assert (rest[shown.legal, 0] == 1).all()
        assert (rest[rest[:, 0] > 0, -2:].sum(1) == 1).all()  # one of two strategies
        shown = world.step(int(np.flatnonzero(shown.legal)[0])).observation


def test_problems_whose_rest_is_another_problem_are_told() -> None:
    with pytest.raises(InputError, match="Take cvrp, knapsack, tsp"):
        load_task({"name": "construct:job_shop", "count": 3, "state": "rest"})


@pytest.mark.parametrize("name", ["tsp", "cvrp"])
def test_a_search_finds_what_is_best_of_small_instances_and_repeats_itself(name: str) -> None:
    pytest.importorskip("pyvrp", reason="pyvrp is not installed: pip install 'grouprl[routing]'")
    small, large = PROBLEMS[name](8), PROBLEMS[name](25)
    for seed in range(4):
        instance = small.sample(NEW(seed))
        found = searched(small, instance)
        assert found.cost == pytest.approx(small.best(instance), rel=1e-6)
    instance = large.sample(NEW(0))
    assert searched(large, instance) == searched(large, instance)
    # in the units of a file: whole distances of places up to 1000
    places = np.floor(1000 * instance["place"])
    far_nn = np.floor(distances(places) + 0.5)
    in_units = searched(large, {**instance, "place": places, "distance": far_nn})
    assert in_units.cost == pytest.approx(1000 * searched(large, instance).cost, rel=0.03)


def test_gaps_to_a_search_are_of_any_size_and_of_routes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="tsp, cvrp"):
        load_task({"name": "construct:knapsack", "count": 5, "solver": "pyvrp"})
    pytest.importorskip("pyvrp", reason="pyvrp is not installed: pip install 'grouprl[routing]'")
    task = load_task({"name": "construct:tsp", "count": 20, "gap": True, "solver": "pyvrp"})
    world, example = task.environment(), task.example("eval", 0)
    world.reset(example, 0)
    while world.building.legal().any():
        world.step(int(np.flatnonzero(world.building.legal())[0]))
    assert world.score()["#gap_percent"] > 20  # by number, not by place
    (row,) = (stored := load_task({"name": "solved:tsp", "count": 20, "solver": "pyvrp"})).stored_rows(
        stored.example("train", 0)
    )
    assert -row.rewards[-1] == pytest.approx(stored.best_of(stored.instance(stored.example("train", 0))).cost)
    monkeypatch.setitem(sys.modules, "pyvrp", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[routing\]"):
        load_task({"name": "construct:tsp", "count": 20, "gap": True, "solver": "pyvrp"})
