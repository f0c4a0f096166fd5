"""A maze whose whole path is written at once."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection
from typing import ClassVar

from pydantic import Field

from grouprl.core.json_types import JsonObject
from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward
from grouprl.rewards.by_task.routes import MOVES, walk, whole_path
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task


@register_task("maze")
class Maze(GeneratedTask):
    """Write the whole path through a grid with walls.

    The prompt is "#01#11 00 02>": walls, start and goal, each as row and column; the completion is "ddrruu", moves u,
    d, l, r. A demonstration sometimes takes a wrong turn without noticing.
    """

    levels = tuple({"size": size, "walls": walls} for size, walls in ((3, 0), (3, 1), (3, 2), (4, 3), (5, 5), (6, 8)))

    size_: int = Field(3, ge=2, le=9, alias="size", description="rows and columns")
    walls: int = Field(2, ge=0, le=20, description="cells that cannot be entered")
    noise: float = Field(0.2, ge=0, le=1, description="chance that a demonstrated move is any of the four")

    alphabet: ClassVar[str] = "0123456789udlr# >"
    """Digits, moves, and the signs of walls and prompts."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: a long path, its end, and one more."""
        return 3 * self.size_ + 2

    @property
    def reward(self) -> Reward:
        """The reward: 0.2 per move of a path that reaches the goal, and 1 for a completion of moves only."""
        return whole_path

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a grid in which the goal can be reached."""
        cells = [f"{row}{column}" for row in range(self.size_) for column in range(self.size_)]
        while True:
            start, goal, *walls = rng.sample(cells, 2 + min(self.walls, len(cells) - 2))
            columns: JsonObject = {"size": self.size_, "start": start, "goal": goal, "walls": sorted(walls)}
            if shortest(**columns):
                return f"{''.join(f'#{wall}' for wall in sorted(walls))} {start} {goal}>", columns

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Return a shortest path, in which some moves are random."""
        return "".join(rng.choice("udlr") if rng.random() < self.noise else move for move in self.solve(example))

    def solve(self, example: Example) -> str:
        """Return a shortest path."""
        return shortest(**example.columns)


def shortest(size: int, start: str, goal: str, walls: Collection[str]) -> str:
    """Return the moves of a shortest path; "" if there is none."""
    paths, waiting = {start: ""}, deque([start])
    while waiting and goal not in paths:
        here = waiting.popleft()
        for move in MOVES:
            there = walk(move, size, here, walls)
            if there is not None and there not in paths:
                paths[there] = paths[here] + move
                waiting.append(there)
    return paths.get(goal, "")
