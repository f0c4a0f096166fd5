"""Grids with walls, a level for each seed, in which the shortest way is known."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from grouprl import InputError
from grouprl.envs.construction.walled_grid import WAYS, WalledGrid, drawn_level, is_free, shortest
from grouprl.records.examples import Example


def level(number: int) -> Example:
    return Example(f"level/{number}", "", {"seed": number})


def walls(*rows: str) -> np.ndarray:
    return np.array([[cell == "#" for cell in row] for row in rows])


def test_the_shortest_way_goes_around_walls() -> None:
    wall_rc = walls("..#", "#.#", "...")
    assert shortest(wall_rc, (0, 0), (2, 2)) == 4
    assert shortest(wall_rc, (0, 0), (0, 0)) == 0
    assert shortest(walls(".#.", "##.", "..."), (0, 0), (2, 2)) is None


def test_a_level_is_its_number_and_can_be_solved() -> None:
    for number in range(30):
        wall_rc, start, goal, length = drawn_level(5, 0.3, 15, number)
        again = drawn_level(5, 0.3, 15, number)
        assert np.array_equal(wall_rc, again[0])
        assert (start, goal, length) == again[1:]
        assert start != goal
        assert not wall_rc[start]
        assert not wall_rc[goal]
        assert 1 <= length <= 15
    assert len({drawn_level(5, 0.3, 15, number)[1:] for number in range(30)}) > 20


def walked(world: WalledGrid) -> list[int]:
    """Actions of a shortest way, by breadth-first search from the present cell."""
    came: dict[tuple[int, int], tuple[tuple[int, int], int] | None] = {world.at: None}
    edge = deque([world.at])
    while world.goal not in came:
        cell = edge.popleft()
        for number, (down, right) in enumerate(WAYS):
            there = (cell[0] + down, cell[1] + right)
            if is_free(world.wall_rc, there) and there not in came:
                came[there] = (cell, number)
                edge.append(there)
    way, cell = [], world.goal
    while (step := came[cell]) is not None:
        cell, number = step
        way.append(number)
    return way[::-1]


def test_the_shortest_way_is_paid_what_the_antagonist_is() -> None:
    for number in range(10):
        world = WalledGrid()
        world.reset(level(number), 99)
        steps = [world.step(action) for action in walked(world)]
        assert sum(float(step.reward) for step in steps) == pytest.approx(world.score()["#best"])
        assert [step.terminated for step in steps] == [False] * (len(steps) - 1) + [True]


def test_walls_and_the_edge_stop_a_step_and_the_time_runs_out_unpaid() -> None:
    world = WalledGrid(side=2, walls=0.0, steps=3)
    world.reset(level(0), 0)
    world.at, world.goal = (0, 0), (1, 1)
    steps = [world.step(0), world.step(2), world.step(1)]
    assert world.at == (1, 0)
    assert [float(step.reward) for step in steps] == [0, 0, 0]
    assert steps[-1].terminated
    with pytest.raises(InputError, match="within an episode"):
        world.step(0)


def test_what_is_seen_are_walls_near_by_the_way_to_the_goal_and_the_time() -> None:
    world = WalledGrid(side=3, walls=0.0, steps=4)
    world.reset(level(0), 0)
    world.at, world.goal = (0, 1), (2, 0)
    seen = world.step(0).observation.values  # type: ignore[attr-defined]
    near = np.asarray(seen)[:25].reshape(5, 5)
    assert near[:2].all()
    assert near[2].tolist() == [1, 0, 0, 0, 1]
    assert np.asarray(seen)[25:].tolist() == pytest.approx([2 / 3, -1 / 3, 0.75])


def test_settings_without_a_level_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2 cells"):
        WalledGrid(side=1)
    with pytest.raises(InputError, match="below 1"):
        WalledGrid(walls=1.0)
