"""Constructive problems: costs by hand, exact solutions against enumeration, and masks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from grouprl.core.errors import InputError
from grouprl.envs.construction import (
    PROBLEMS,
    Assignment,
    ConstructionWorld,
    Cvrp,
    Instance,
    JobShop,
    KnapsackProblem,
    TaskAllocation,
    Tsp,
)
from grouprl.envs.construction.problem import solved
from grouprl.records.examples import Example
from grouprl.tasks import load_task
from grouprl.testing import check_environment

SQUARE = {"place": np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])}
ROUTES = {**SQUARE, "demand": np.array([0.0, 2.0, 2.0, 2.0]), "capacity": np.array([4.0])}
SHOP = {"machine": np.array([[0, 1, 2], [1, 0, 2]]), "time": np.array([[3.0, 2.0, 1.0], [2.0, 4.0, 1.0]])}
NEW = np.random.default_rng


def finished(problem, instance: Instance, luck: np.random.Generator):
    """Build a random solution; every choice is a legal one."""
    building = problem.begin(instance, luck)
    while (legal_n := building.legal()).any():
        building.take(int(luck.choice(np.flatnonzero(legal_n))))
    return building


def test_costs_are_those_computed_by_hand() -> None:
    building = Tsp(4).begin(SQUARE, NEW(0))
    order = [building.chosen[0], *(n for n in range(4) if n != building.chosen[0])]
    for node in order[1:]:
        building.take(node)
    assert Tsp(4).best(SQUARE) == pytest.approx(4)
    # two customers in one route and one alone: 0-1-2-0 is 2 + √2, 0-3-0 is 2
    assert solved(Cvrp(3), ROUTES, [1, 2, 0, 3]) == pytest.approx(4 + 2**0.5)
    assert Cvrp(3).best(ROUTES) == pytest.approx(4 + 2**0.5)
    sack = {"value": np.array([3.0, 4.0, 5.0]), "weight": np.array([2.0, 3.0, 4.0]), "capacity": np.array([5.0])}
    assert solved(KnapsackProblem(3), sack, [0, 1]) == -7
    assert KnapsackProblem(3).best(sack) == -7  # not the most valuable item first: that leaves no room, 5
    plan = {"entity": np.array([[0.0, 0.0], [1.0, 0.0]]), "task": np.array([[0.4, 0.0], [0.0, 0.0]])}
    assert solved(Assignment(2), plan, [0, 1]) == pytest.approx(1.4)  # entity 0 takes 0.4, entity 1 goes 1
    assert Assignment(2).best(plan) == pytest.approx(0.6)
    # job 0: machine 0 in 0-3, 1 in 3-5, 2 in 5-6; job 1: machine 1 in 0-2, 0 in 3-7, 2 in 7-8
    assert solved(JobShop(2), SHOP, [0, 1, 0, 1, 0, 1]) == 8
    assert JobShop(2).best(SHOP) == 8


def test_a_task_is_worth_what_is_met_of_its_needs() -> None:
    """Worth 1 and 0.5. Entity 0 meets (1 + ½ + 0)/3 of task 0; both entities (1 + 1 + ⅓)/3, the excess is lost."""
    sent = {
        "skill": np.array([[1.0, 0.5, 0.0], [0.5, 0.5, 0.5]]),
        "need": np.array([[1.0, 1.0, 1.5], [0.5, 1.0, 1.0]]),
        "worth": np.array([1.0, 0.5]),
    }
    problem = TaskAllocation(3)
    assert solved(problem, sent, [0, 0]) == pytest.approx(-7 / 9)
    assert solved(problem, sent, [0, 1]) == pytest.approx(-(0.5 + 0.5 * 2 / 3))
    found = problem.solution(sent)
    assert found is not None
    assert found.cost == pytest.approx(-5 / 6)
    assert found.choices == [0, 1]
    building = problem.begin(sent, NEW(0))
    building.take(0)
    assert building.view().nodes_nd[0].tolist() == pytest.approx([1, 0.5, 0, 0, 0.5, 1 / 3])
    assert building.view().whole_s.tolist() == [0.5, 0.5, 0.5, 0, 0, 0, 0.5]


@pytest.mark.parametrize("seed", range(3))
def test_exact_solutions_are_the_best_of_all_solutions(seed: int) -> None:
    luck = NEW(seed)
    for problem in (PROBLEMS[n](5 if n != "job_shop" else 2) for n in PROBLEMS):
        instance = problem.sample(luck)
        assert problem.best(instance) == pytest.approx(min(everything(problem, instance)))


def test_a_job_shop_of_three_jobs_has_no_shorter_schedule() -> None:
    for seed in (0, 1):
        instance = JobShop(3).sample(NEW(seed))
        instance = {name: x[:, :2] for name, x in instance.items()}  # two operations each: 90 orders
        assert JobShop(3).best(instance) == pytest.approx(min(everything(JobShop(3), instance)))


def everything(problem, instance: Instance) -> list[float]:
    """The costs of all solutions, by enumeration."""
    found, open_paths = [], [[]]
    start = problem.begin(instance, NEW(0)).chosen
    while open_paths:
        path = open_paths.pop()
        building = problem.begin(instance, NEW(0))
        for node in path:
            building.take(node)
        legal = np.flatnonzero(building.legal()).tolist()
        open_paths += [[*path, node] for node in legal]
        found += [] if legal else [building.cost()]
    assert len(found) > 1
    assert start == problem.begin(instance, NEW(0)).chosen
    return found


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_random_solution_is_whole_and_no_better_than_the_best(name: str) -> None:
    problem = PROBLEMS[name](4)
    for seed in range(10):
        instance = problem.sample(NEW(seed))
        building = finished(problem, instance, NEW(seed))
        assert len(building.chosen) <= problem.longest + 1
        assert problem.gap(instance, building.cost()) >= -1e-9
        assert problem.map_of(instance).shape == (problem.nodes, problem.features)
    assert problem.gap(instance, problem.best(instance)) == pytest.approx(0)


def test_a_vehicle_never_carries_more_than_its_capacity() -> None:
    problem = Cvrp(9)
    for seed in range(20):
        instance = problem.sample(NEW(seed))
        path = finished(problem, instance, NEW(seed)).chosen
        routes = [list(route) for at_depot, route in itertools.groupby(path, lambda n: n == 0) if not at_depot]
        assert all(instance["demand"][route].sum() <= problem.capacity for route in routes)
        assert sorted(n for route in routes for n in route) == list(range(1, 10))


def test_turning_and_mirroring_a_map_changes_no_length() -> None:
    place_n2 = NEW(3).random((7, 2))
    turned = np.stack([place_n2[:, 1], 1 - place_n2[:, 0]], -1)
    assert Tsp(7).best({"place": turned}) == pytest.approx(Tsp(7).best({"place": place_n2}))


def test_larger_instances_have_no_gap_and_wrong_choices_are_told() -> None:
    problem = Tsp(13)
    assert problem.gap(problem.sample(NEW(0)), 3.0) is None
    with pytest.raises(InputError, match="not legal"):
        solved(Cvrp(3), ROUTES, [0])
    with pytest.raises(InputError, match="not a whole solution"):
        solved(Cvrp(3), ROUTES, [1])
    with pytest.raises(InputError, match="at least 3"):
        Tsp(2)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_world_keeps_the_rules_of_environments(name: str) -> None:
    task = load_task({"name": f"construct:{name}", "count": 4, "gap": True})
    example = task.example("train", 0)
    world = task.environment()
    shown, actions = world.reset(example, 5), []
    assert set(shown.context) == {"map"}
    while True:
        actions.append(int(np.flatnonzero(shown.legal)[-1]))
        step = world.step(actions[-1])
        shown = step.observation
        if step.terminated:
            break
        assert step.reward == 0
        assert shown.context == {}
    assert step.reward == pytest.approx(-world.building.cost())
    assert world.score()["#gap_percent"] >= -1e-9
    with pytest.raises(InputError, match="no solution was under way"):
        world.step(0)
    check_environment(task.environment, example, actions, spaces=task.spaces, seed=5)


def test_samples_of_a_group_share_their_map_and_start_apart() -> None:
    task = load_task({"name": "construct:tsp", "count": 6})
    example = task.example("train", 0)
    worlds = [task.environment() for _ in range(12)]
    shown = [world.reset(example, seed) for seed, world in enumerate(worlds)]
    assert all((each.context["map"] == shown[0].context["map"]).all() for each in shown)
    assert len({each.values["here"] for each in shown}) > 2
    other = task.environment().reset(task.example("train", 1), 0)
    assert (other.context["map"] != shown[0].context["map"]).any()


def test_a_node_that_is_not_legal_is_told() -> None:
    task = load_task({"name": "construct:tsp", "count": 6})
    world = task.environment()
    here = world.reset(task.example("train", 0), 0).values["here"]
    with pytest.raises(InputError, match=f"node {here}"):
        world.step(here)


def test_an_object_is_one_episode() -> None:
    world = ConstructionWorld(Tsp(4), lambda example: SQUARE)
    world.reset(Example("one", "", {}), 0)
    with pytest.raises(InputError, match="reset"):
        world.reset(Example("one", "", {}), 0)


def test_a_hypergrid_pays_what_its_paper_says_and_backward_chances_add_up_to_one() -> None:
    from grouprl.envs.construction.hypergrid import HyperGrid, reward

    assert reward((0, 0), 8) == pytest.approx(0.6)  # at the edge: |0 - ½| = ½, on the plateau
    assert reward((1, 6), 8) == pytest.approx(2.6)  # |1/7 - ½| = 0.357
    assert reward((3, 3), 8) == pytest.approx(0.1)
    total = {}
    for first, second in ((0, 1), (1, 0)):
        world = HyperGrid(4, 2)
        world.reset(Example("one", "", {}), 0)
        total[first] = world.step(first).reward + world.step(second).reward
    # both orders lead to (1, 1), whose two parents are equally likely
    assert sum(np.exp(list(total.values()))) == pytest.approx(1)
    assert world.step(2).reward == pytest.approx(np.log(reward((1, 1), 4)))
    check_environment(lambda: HyperGrid(4, 2), Example("one", "", {}), [0, 1, 2], spaces=HyperGrid(4, 2).spaces)
    with pytest.raises(InputError, match="not legal"):
        world.step(0)
