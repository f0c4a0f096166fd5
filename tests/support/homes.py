"""Homes with people that a test chooses: every way in which they can live with each other, and what an order earns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from grouprl.envs.builtin.sub_tasks import Homes, SubTask
from grouprl.records.examples import Example

ANY = Example("any", {})


class Told(Homes):
    """The world with people that the test chooses."""

    def __init__(self, tasks: list[SubTask], match: float = 0.5) -> None:
        super().__init__(len(tasks), match=match)
        self.tasks = tasks

    def draw(self, example: Example, seed: int) -> list[SubTask]:
        return self.tasks


def forests(count: int) -> list[tuple[int, ...]]:
    """Everyone's host, or -1, without circles."""

    def rooted(hosts: Sequence[int], person: int) -> bool:
        for _ in range(count):
            person = hosts[person] if person >= 0 else person
        return person < 0

    every = product(range(-1, count), repeat=count)
    return [hosts for hosts in every if all(rooted(hosts, person) for person in range(count))]


def earned(tasks: list[SubTask], order: Sequence[int], match: float = 0.5) -> tuple[list[float], float]:
    world = Told(tasks, match)
    world.reset(ANY, 0)
    steps = [world.step(action) for action in order]
    assert [step.terminated for step in steps] == [False] * (len(order) - 1) + [True]
    return [step.reward for step in steps], world.score()["correct"]
