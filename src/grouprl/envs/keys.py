"""A grid with a key and a door."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

from grouprl.envs.game import Game, Outcome
from grouprl.rewards.gates import product

MOVES = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
Cell = tuple[int, int]
CRASH, PENALTY, STICKY = -1.0, 0.5, 2
"""What running into a wall costs, the gate after turning back, and the moves for which it holds, itself included."""


def spell(cell: Cell) -> str:
    """Return a cell as row and column, "02"."""
    return f"{cell[0]}{cell[1]}"


class Keys(Game):
    """Fetch the key, then reach the door: the only reward comes at the end of a long way.

    Columns: `size`, and the cells "row column" of `start`, `key`, `door` and the `walls`. An observation is the cell
    that one stands on and '>', after '@' without the key ("@02>") and after '&' with it ("&02>"). Moves are u, d, l
    and r; one that leads into a wall, and anything else, is invalid, leaves everything as it is, and is answered with
    '!' before the observation. The state is the observation without its sign.

    `reward` "door" pays 1 at the door. "carl" pays as CaRL does (Jaeger et al. 2025, arXiv 2504.17838): the progress
    along the way, times gates, where a hard failure ends the episode. Progress is the part of the way behind one,
    counted where it grows; stepping back without need to where one came from halves what the next move earns; running
    into a wall ends the episode with -1.
    """

    def __init__(self, max_turns: int, noise: float = 0.3, reward: str = "door") -> None:
        """Prepare an episode of at most `max_turns` moves; `noise` is the chance of a demonstration's random move."""
        super().__init__(max_turns)
        self.noise, self.reward = noise, reward
        self.before: Cell | None = None
        self.whole = self.left = self.sticky = 0
        self.size = 0
        self.at = self.key = self.door = (0, 0)
        self.walls: frozenset[Cell] = frozenset()
        self.holding = False

    def begin(self, columns: Mapping[str, Any], rng: random.Random) -> None:
        """Read the grid."""
        self.size = int(columns["size"])
        self.at, self.key, self.door = (_cell(columns[name]) for name in ("start", "key", "door"))
        self.walls = frozenset(map(_cell, columns["walls"]))
        self.holding = self.at == self.key
        self.whole = self.left = len(self.way())

    @property
    def state(self) -> str:
        """Where one stands, and whether one has the key."""
        return ("&" if self.holding else "@") + spell(self.at)

    @property
    def legal(self) -> tuple[str, ...]:
        """The moves that lead into no wall."""
        return tuple(move for move in MOVES if self._free(self._beyond(self.at, move)))

    @property
    def correct(self) -> bool:
        """Whether one stands at the door with the key."""
        return self.holding and self.at == self.door

    def act(self, action: str) -> Outcome:
        """Move."""
        if action not in self.legal:
            crash = self.reward == "carl" and action in MOVES
            return Outcome(f"!{self.state}>", reward=CRASH * crash, ended=crash, valid=False)
        came_from, self.before, self.at = self.before, self.at, self._beyond(self.at, action)
        self.holding = self.holding or self.at == self.key
        reward = self._progress(back=self.at == came_from) if self.reward == "carl" else float(self.correct)
        return Outcome(f"{self.state}>", reward=reward, ended=self.correct)

    def demonstrate(self, rng: random.Random) -> str:
        """Move along a shortest way, or with a certain chance anywhere."""
        return rng.choice(self.legal) if rng.random() < self.noise else self.way()[0]

    def way(self) -> str:
        """Return the moves of a shortest way to the key and on to the door; "" where there is none."""
        if self.holding:
            return self._path(self.at, self.door)
        first, then = self._path(self.at, self.key), self._path(self.key, self.door)
        return first + then if (first or self.at == self.key) and then else ""

    def _progress(self, back: bool) -> float:
        left = min(self.left, 0 if self.correct else len(self.way()))
        gained, self.left = (self.left - left) / max(1, self.whole), left
        self.sticky = STICKY if back and not gained else max(0, self.sticky - 1)
        return product(gained, [PENALTY] if self.sticky else [])

    def _path(self, start: Cell, goal: Cell) -> str:
        paths, waiting = {start: ""}, deque([start])
        while waiting and goal not in paths:
            here = waiting.popleft()
            for move in MOVES:
                there = self._beyond(here, move)
                if self._free(there) and there not in paths:
                    paths[there] = paths[here] + move
                    waiting.append(there)
        return paths.get(goal, "")

    def _beyond(self, cell: Cell, move: str) -> Cell:
        return cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]

    def _free(self, cell: Cell) -> bool:
        return 0 <= cell[0] < self.size and 0 <= cell[1] < self.size and cell not in self.walls


def _cell(text: str) -> Cell:
    return int(text[0]), int(text[1])
