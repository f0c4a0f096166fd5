"""Vehicles that choose at once: times and conflicts by hand, one vehicle against routes, preferences, and the end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from grouprl.core.errors import InputError
from grouprl.envs.construction import Cvrp
from grouprl.envs.construction.fleet import DeliveryFleet, ProfiledFleet, resolved, turned
from grouprl.envs.construction.problem import solved
from grouprl.envs.construction.tours import distances
from grouprl.records.examples import Example
from grouprl.testing import check_environment

NEW = np.random.default_rng
SQUARE = {
    "place": np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]),
    "demand": np.array([0.0, 2.0, 2.0, 2.0]),
    "capacity": np.array([4.0, 2.0]),
    "speed": np.array([1.0, 0.5]),
    "profile": np.zeros((2, 4)),
}


def example(seed: int = 0) -> Example:
    return Example("one", "", {"seed": seed})


def played(world: DeliveryFleet, rounds: list[tuple[list[int], list[int]]]) -> list[float]:
    return [world.step([*picks, *ranks]).reward for picks, ranks in rounds]


def finished(world: DeliveryFleet, luck: np.random.Generator) -> int:
    """Pick legal nodes by chance to the end; return the rounds."""
    for count in itertools.count(1):
        picks = [luck.choice(np.flatnonzero(legal_n)) for legal_n in world.legal()]
        if world.step([*picks, *luck.permutation(len(picks))]).terminated:
            return count
    raise AssertionError


def test_times_and_the_reward_are_those_by_hand() -> None:
    world = DeliveryFleet(3, 2)
    world.begin(SQUARE)
    # vehicle 0 goes 0-1-2-0, 2 + √2; vehicle 1, at half the speed, 0-3-0: 4
    assert played(world, [([1, 3], [0, 1]), ([2, 3], [0, 1])]) == [0, pytest.approx(-4)]
    assert world.times() == pytest.approx([2 + 2**0.5, 4])
    assert world.routes == [[0, 1, 2], [0, 3]]
    assert world.score() == {"#lost_picks": 0}


def test_of_several_who_pick_a_customer_the_best_rank_goes_there() -> None:
    here = np.array([0, 0, 3])
    assert resolved(np.array([2, 2, 2]), np.array([1, 0, 2]), here).tolist() == [0, 2, 3]
    assert resolved(np.array([2, 2, 2]), np.array([1, 1, 0]), here).tolist() == [0, 0, 2]
    assert resolved(np.array([2, 2, 4]), np.array([0, 0, 0]), here).tolist() == [2, 0, 4]  # then by number
    assert resolved(np.array([0, 1, 0]), np.array([0, 0, 0]), here).tolist() == [0, 1, 0]  # the depot is shared
    world = DeliveryFleet(3, 2)
    world.begin(SQUARE)
    played(world, [([1, 1], [1, 0])])
    assert world.routes == [[0], [0, 1]]
    assert world.score() == {"#lost_picks": 0.5}
    assert world.time_k.tolist() == [0, 2]


def test_legal_is_what_fits_and_the_first_in_time_must_move() -> None:
    world = DeliveryFleet(3, 2)
    world.begin(SQUARE)
    assert world.legal().tolist() == [[False, True, True, True], [True, True, True, True]]
    played(world, [([1, 3], [0, 1])])
    # vehicle 1 is empty: it may stay or go home; vehicle 0 travelled less, and may not stay
    assert world.legal().tolist() == [[True, False, True, False], [True, False, False, True]]
    with pytest.raises(InputError, match=r"The legal nodes are \[\[0, 2\], \[0, 3\]\]"):
        world.step([1, 3, 0, 1])


def test_one_vehicle_is_a_vehicle_of_the_cvrp() -> None:
    """At a speed of 1 the time of a single vehicle is the length of the same choices."""
    for seed in range(5):
        world = DeliveryFleet(5, 1)
        instance = {**world.drawn(NEW(seed)), "speed": np.ones(1), "capacity": np.array([20.0])}
        world.begin(instance)
        finished(world, NEW(seed))
        plain = {name: instance[name] for name in ("place", "demand", "capacity")}
        assert world.cost() == pytest.approx(solved(Cvrp(5), plain, world.routes[0][1:]))


@pytest.mark.parametrize("make", [DeliveryFleet, lambda n, k: ProfiledFleet(n, k, forbidden=0.5)])
def test_every_customer_is_served_once_by_one_who_may_and_can(make) -> None:
    for seed in range(20):
        world = make(7, 3)
        world.begin(world.drawn(NEW(seed)))
        assert finished(world, NEW(seed)) <= 14
        served = sorted(node for route in world.routes for node in route if node)
        assert served == list(range(1, 8))
        for vehicle, route in enumerate(world.routes):
            loads = [0.0]
            for here, node in itertools.pairwise(route):
                assert world.served_by()[vehicle, node]
                loads.append(0.0 if node == 0 else loads[-1] + world.demand_n[node])
                assert here != node
            assert max(loads) <= world.capacity_k[vehicle]


def test_equal_preferences_are_the_time_and_a_constant() -> None:
    """CAMP with preferences that are all equal to p: the time of all vehicles less weight·p for each customer."""
    for seed in range(5):
        worlds = ProfiledFleet(5, 2, weight=0.3), ProfiledFleet(5, 2, weight=0.0)
        instance = {**worlds[0].drawn(NEW(seed)), "profile": np.full((2, 6), 0.7)}
        instance["profile"][:, 0] = 0
        for world in worlds:
            world.begin(instance)
            finished(world, NEW(seed))
        assert worlds[0].routes == worlds[1].routes
        assert worlds[0].cost() == pytest.approx(worlds[1].cost() - 0.3 * 0.7 * 5)
        assert worlds[1].cost() == pytest.approx(worlds[1].times().sum())


def test_preferences_count_for_who_serves() -> None:
    world = ProfiledFleet(3, 2, weight=2.0)
    world.begin({**SQUARE, "profile": np.array([[0, 0.5, 0.25, 1.0], [0, 1.0, 1.0, 0.125]])})
    played(world, [([1, 3], [0, 1]), ([2, 3], [0, 1])])
    assert world.cost() == pytest.approx(2 + 2**0.5 + 4 - 2 * (0.5 + 0.25 + 0.125))


def test_every_customer_has_a_vehicle_however_much_is_forbidden() -> None:
    for seed in range(10):
        profile_kn = ProfiledFleet(9, 3, forbidden=0.95).drawn(NEW(seed))["profile"]
        assert (profile_kn >= 0).any(0).all()
        assert (profile_kn[:, 0] == 0).all()
        assert (profile_kn < 0).sum() >= 9


def test_the_eight_ways_keep_distances_and_differ() -> None:
    place_n2 = NEW(0).random((5, 2))
    ways = [turned(place_n2, way) for way in range(8)]
    assert len({each.round(9).tobytes() for each in ways}) == 8
    for each in ways:
        np.testing.assert_allclose(distances(each), distances(place_n2), atol=1e-12)
        assert each.min() >= 0
        assert each.max() <= 1
    assert (ways[0] == place_n2).all()


def test_a_seed_turns_the_map_and_changes_no_cost() -> None:
    shown, costs = set(), set()
    for seed in range(12):
        world = DeliveryFleet(4, 2)
        seen = world.reset(example(3), seed)
        shown.add(seen.context["map"].tobytes())
        finished(world, NEW(0))
        costs.add(round(world.cost(), 9))
    assert len(shown) > 4
    assert len(costs) == 1


def test_the_worlds_keep_the_rules_of_environments() -> None:
    for make in (DeliveryFleet, ProfiledFleet):
        world = make(3, 2)
        world.reset(example(), 0)
        actions, luck = [], NEW(0)
        while world.legal()[:, 1:].any() and world._open_n.any():
            picks = [int(luck.choice(np.flatnonzero(legal_n))) for legal_n in world.legal()]
            actions.append(np.array([*picks, 0, 1]))
            world.step(actions[-1])
        check_environment(lambda make=make: make(3, 2), example(), actions, spaces=make(3, 2).spaces)
    with pytest.raises(InputError, match="At least one of each"):
        DeliveryFleet(0, 2)
    with pytest.raises(InputError, match="share of pairs"):
        ProfiledFleet(3, 2, forbidden=1.0)
