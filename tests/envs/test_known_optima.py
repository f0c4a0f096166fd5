"""Worlds whose best rule is known: orders against demand, blocks of a bandit, a swarm that moves as one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from grouprl import InputError
from grouprl.envs.construction.bandit_blocks import BanditBlock, best_of_two
from grouprl.envs.construction.inventory import Inventory, base_stock, expected_return, ordering_up_to
from grouprl.envs.construction.swarm import Kuramoto, order, turns
from grouprl.records.examples import Example

ANY = Example("any", {})
ONE_EACH = (0.0, 1.0)
"""One unit is demanded in every period."""


def paid(world: Inventory, orders: list[int]) -> list[float]:
    world.reset(ANY, 0)
    return [float(world.step(each).reward) for each in orders]


def test_units_left_over_cost_the_holding_and_missing_ones_the_penalty() -> None:
    """Stock 3-1 = 2, then 2-1 = 1, 0, and -1 missing."""
    world = Inventory(ONE_EACH, holding=1, penalty=4, periods=4)
    assert paid(world, [3, 0, 0, 0]) == [-2.0, -1.0, 0.0, -4.0]


def test_what_is_missing_waits_or_is_lost() -> None:
    """Missing 1 of the first period: with a backlog the second order of 1 serves it, and one is missing again."""
    assert paid(Inventory(ONE_EACH, periods=3), [0, 1, 2]) == [-4.0, -4.0, 0.0]
    assert paid(Inventory(ONE_EACH, periods=3, backlog=False), [0, 1, 2]) == [-4.0, 0.0, -1.0]


def test_an_order_arrives_after_the_lead() -> None:
    world = Inventory(ONE_EACH, lead=1, periods=3)
    assert paid(world, [2, 0, 0]) == [-4.0, 0.0, -4.0]
    world.reset(ANY, 0)
    shown = world.step(2).observation.values  # type: ignore[attr-defined]
    assert np.allclose(shown, [-1.0, 2.0, 2 / 3])


@pytest.mark.parametrize(("penalty", "lead", "level"), [(4, 0, 3), (1, 0, 2), (9, 0, 4), (4, 1, 6)])
def test_the_base_stock_is_the_quantile_of_demand(penalty: float, lead: int, level: int) -> None:
    """Demand 0 to 4, a fifth each: P(D ≤ 3) = 0.8. Of two periods P(≤ 5) = 19/25 < 0.8 ≤ P(≤ 6) = 22/25."""
    assert base_stock(Inventory(penalty=penalty, lead=lead)) == level


@pytest.mark.parametrize(("lead", "backlog"), [(0, True), (0, False), (1, True)])
def test_no_rule_beats_the_base_stock_where_it_is_the_best(lead: int, backlog: bool) -> None:
    """Orders so late that they arrive after the end cost nothing: the rule may place them."""
    world = Inventory(lead=lead, periods=4, backlog=backlog)
    level = base_stock(world)
    best = expected_return(world)
    assert expected_return(world, ordering_up_to(level, world.largest)) == pytest.approx(best, abs=1e-12)
    for other in (level - 1, level + 1):
        assert expected_return(world, ordering_up_to(other, world.largest)) <= best + 1e-12


def test_with_lost_sales_and_a_lead_another_rule_is_better() -> None:
    world = Inventory(lead=1, periods=5, backlog=False)
    levels = range(world.largest + 1)
    best_level = max(expected_return(world, ordering_up_to(level, world.largest)) for level in levels)
    assert expected_return(world) > best_level + 1e-3


def test_the_expectation_is_the_mean_over_all_demands() -> None:
    world = Inventory((0.5, 0.25, 0.25), periods=2)
    rule = ordering_up_to(1, 8)
    total = 0.0
    for demands in itertools.product(range(3), repeat=2):
        stock, coming, lost = 0, (), 0.0
        for demanded in demands:
            stock, coming, cost = world.after(stock, coming, rule(stock, coming), demanded)
            lost += cost
        total -= lost * math.prod(world.demand[demanded] for demanded in demands)
    assert expected_return(world, rule) == pytest.approx(total, abs=1e-12)


def test_orders_outside_of_an_episode_or_too_large_are_refused() -> None:
    world = Inventory(largest=2, periods=1)
    with pytest.raises(InputError, match="Orders are 0 to"):
        world.step(0)
    world.reset(ANY, 0)
    with pytest.raises(InputError, match="0 to 2"):
        world.step(3)
    with pytest.raises(InputError, match="add up to 1"):
        Inventory(demand=(0.5, 0.6))
    with pytest.raises(InputError, match="at least 0"):
        Inventory(lead=-1)


def test_a_group_meets_the_same_demand() -> None:
    first, second = Inventory(), Inventory()
    first.reset(ANY, 7), second.reset(ANY, 7)
    assert [first.step(2).reward for _ in range(10)] == [second.step(2).reward for _ in range(10)]


# --- blocks of a bandit -----------------------------------------------------------------------------------------------


def test_pulls_and_wins_are_remembered_and_nothing_else_tells_bandits_apart() -> None:
    world = BanditBlock(arms=2, pulls=4)
    begun = world.reset(ANY, 3).values
    assert np.asarray(begun).tolist() == [0, 0, 0, 0, 1]
    wins = [float(world.step(arm).reward) for arm in (0, 1, 0)]
    shown = world.step(1).observation.values  # type: ignore[attr-defined]
    assert shown[:2].tolist() == [0.5, 0.5]
    assert shown[2] == (wins[0] + wins[2]) / 4
    assert shown[4] == 0
    blind = BanditBlock(pulls=4, memory=False)
    assert np.asarray(blind.reset(ANY, 3).values).tolist() == [1]


def test_an_arm_pays_the_same_at_its_nth_pull_whatever_was_pulled_between() -> None:
    one, other = BanditBlock(pulls=6), BanditBlock(pulls=6)
    one.reset(ANY, 5), other.reset(ANY, 5)
    alone = [one.step(0).reward for _ in range(3)]
    between = [other.step(arm).reward for arm in (0, 1, 0, 1, 0)][::2]
    assert alone == between


def test_arms_pay_half_of_the_time_and_the_blocks_end() -> None:
    world, total = BanditBlock(pulls=5), 0.0
    for seed in range(400):
        world.reset(ANY, seed)
        steps = [world.step(0) for _ in range(5)]
        total += sum(step.reward for step in steps)
        assert [step.terminated for step in steps] == [False] * 4 + [True]
    assert total / 2000 == pytest.approx(0.5, abs=0.055)
    with pytest.raises(InputError, match="5 pulls"):
        world.step(0)
    with pytest.raises(InputError, match="two arms"):
        BanditBlock(arms=1)


def test_what_is_best_is_known() -> None:
    """Of two pulls: ½, then the arm that won again (⅔) or the other (½): ½·⅔ + ½·½ = 7/12."""
    assert best_of_two(1) == 0.5
    assert best_of_two(2) == pytest.approx(0.5 + 7 / 12)
    assert best_of_two(20) == pytest.approx(12.431, abs=1e-3)
    assert best_of_two(20, horizon=1) == pytest.approx(12.331, abs=1e-3)


def test_the_greedy_rules_value_is_that_of_playing_it() -> None:
    """1000 blocks of ten pulls of the arm with the highest mean so far: 5.990 in expectation."""
    world, got = BanditBlock(pulls=10), []
    for seed in range(1000):
        world.reset(ANY, seed)
        total = 0.0
        for _ in range(10):
            mean_a = (world.won_a + 1) / (world.pulled_a + 2)
            total += world.step(int(mean_a.argmax())).reward
        got.append(total)
    assert np.mean(got) == pytest.approx(best_of_two(10, 1), abs=3 * np.std(got) / 1000**0.5)


# --- a swarm ----------------------------------------------------------------------------------------------------------


def swarm_order(rule_k: np.ndarray, oscillators: int, seed: int = 0) -> float:
    world = Kuramoto(oscillators, knots=len(rule_k), steps=40)
    world.reset(ANY, seed)
    for _ in range(40):
        world.step(rule_k)
    return world.score()["#order"]


FOLLOW = np.sin(2 * math.pi * np.arange(8) / 8)
"""Turn towards the crowd: the difference is ψ - θ."""


def test_order_is_1_for_one_phase_and_0_for_opposite_ones() -> None:
    assert order(np.full(5, 0.7)) == (pytest.approx(1.0), pytest.approx(0.7))
    assert order(np.array([0.0, math.pi]))[0] == pytest.approx(0.0)


def test_a_rule_is_its_knots_at_them_nearly_and_even_rules_are_even() -> None:
    knots = 2 * math.pi * np.arange(8) / 8
    assert np.allclose(turns(np.full(8, 0.3), knots), 0.3)
    assert np.allclose(turns(FOLLOW, knots), turns(FOLLOW, knots + 2 * math.pi))
    assert turns(FOLLOW, np.array([math.pi / 2]))[0] > 0.6 > 0 > turns(FOLLOW, np.array([-math.pi / 2]))[0]


def test_following_the_crowd_brings_order_in_swarms_of_any_size() -> None:
    for size in (20, 50, 200):
        assert swarm_order(FOLLOW, size) > 0.8
    assert swarm_order(-FOLLOW, 50) < 0.4


def test_who_is_who_does_not_matter() -> None:
    world = Kuramoto(6, noise=0.0, steps=1)
    world.reset(ANY, 1)
    phase_n, own_n = world.phase_n, world.own_n
    reward = world.step(FOLLOW).reward
    other = Kuramoto(6, noise=0.0, steps=1)
    shown = other.reset(ANY, 1).values
    other.phase_n, other.own_n = phase_n[::-1].copy(), own_n[::-1].copy()
    assert np.allclose(other._shown().values, shown)
    assert other.step(FOLLOW).reward == pytest.approx(reward)


def test_rules_of_another_shape_and_turns_after_the_end_are_refused() -> None:
    world = Kuramoto(4, steps=1, informed=False)
    assert np.asarray(world.reset(ANY, 0).values).tolist() == [0, 0, 0, 1]
    with pytest.raises(InputError, match="8 numbers"):
        world.step(np.zeros(3))
    world.step(np.zeros(8))
    with pytest.raises(InputError, match="given during an episode"):
        world.step(np.zeros(8))
    with pytest.raises(InputError, match="two oscillators"):
        Kuramoto(1)
