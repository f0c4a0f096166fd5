"""A grid with a key and a door."""

from __future__ import annotations

import copy
import random
import re
from collections import deque
from collections.abc import Sequence

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns
from grouprl.rewards.gates import product

MOVES = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
MADE = re.compile(r"([^>!@&]*)(!?[@&]\d\d>)")
"""A move and the text shown after it, as they appear in the text of an episode."""
Cell = tuple[int, int]
CRASH, PENALTY, STICKY = -1.0, 0.5, 2
"""The reward for running into a wall, the factor after turning back, and the number of moves for which it holds,
including the first.
"""


def spell(cell: Cell) -> str:
    """Return a cell as row and column, "02"."""
    return f"{cell[0]}{cell[1]}"


class Keys(Game):
    """Fetch the key, then reach the door: the only reward comes at the end of a long way.

    Columns: `size`, and the cells "row column" of `start`, `key`, `door` and the `walls`. An observation is the agent's
    cell and '>', after '@' without the key ("@02>") and after '&' with it ("&02>"). Moves are u, d, l and r; a move
    into a wall, and anything else, is invalid, changes nothing, and is answered with '!' before the observation. The
    state is the observation without its sign.

    `reward` "door" pays 1 at the door. "carl" pays as CaRL does (Jaeger et al. 2025, arXiv 2504.17838): progress along
    the way, multiplied by gates, and a hard failure ends the episode. Progress is the share of the way completed, and
    only increases count; stepping back needlessly to the previous cell halves the reward of the next move; running into
    a wall ends the episode with -1.

    "expert" follows an expert as UI-S1 does (Lu et al. 2025, arXiv 2509.11543): a move on a shortest way pays its share
    of the way; any other is invalid and replaced by the expert's, so that the episode continues from the expert's cell.
    Only an episode without a replaced move is correct.
    """

    def __init__(self, max_turns: int, noise: float = 0.3, reward: str = "door") -> None:
        """Prepare an episode of at most `max_turns` moves; a demonstrated move is random with chance `noise`."""
        super().__init__(max_turns)
        self.noise, self.reward = noise, reward
        self.before: Cell | None = None
        self.whole = self.left = self.sticky = 0
        self.size = 0
        self.at = self.key = self.door = (0, 0)
        self.walls: frozenset[Cell] = frozenset()
        self.holding = False
        self.patched = 0

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Read the grid."""
        self.size = int(columns["size"])
        self.at, self.key, self.door = (_cell(columns[name]) for name in ("start", "key", "door"))
        self.walls = frozenset(map(_cell, columns["walls"]))
        self.holding = self.at == self.key
        self.whole = self.left = len(self.way())

    @property
    def state(self) -> str:
        """The agent's cell, and whether it has the key."""
        return ("&" if self.holding else "@") + spell(self.at)

    @property
    def legal(self) -> tuple[str, ...]:
        """The moves that do not lead into a wall."""
        return tuple(move for move in MOVES if self._free(self._beyond(self.at, move)))

    @property
    def correct(self) -> bool:
        """True if the agent is at the door with the key, without any move of the expert."""
        return self._arrived and not self.patched

    @property
    def _arrived(self) -> bool:
        return self.holding and self.at == self.door

    def act(self, action: str) -> Outcome:
        """Make a move."""
        if self.reward == "expert":
            return self._follow(action)
        if action not in self.legal:
            crash = self.reward == "carl" and action in MOVES
            return Outcome(f"!{self.state}>", reward=CRASH * crash, ended=crash, valid=False)
        came_from, self.before = self.before, self.at
        self._move(action)
        reward = self._progress(back=self.at == came_from) if self.reward == "carl" else float(self.correct)
        return Outcome(f"{self.state}>", reward=reward, ended=self.correct)

    def demonstrate(self, rng: random.Random) -> str:
        """Return a move along a shortest way, or with a certain chance any move."""
        return rng.choice(self.legal) if rng.random() < self.noise else self.way()[0]

    def is_on_path(self, action: str) -> bool:
        """Return whether an action is the next move of a shortest way."""
        if action not in self.legal:
            return False
        probe = copy.copy(self)
        probe._move(action)
        return len(probe.way()) < len(self.way())

    def way(self) -> str:
        """Return the moves of a shortest way to the key and then to the door; "" if there is none."""
        if self.holding:
            return self._path(self.at, self.door)
        first, then = self._path(self.at, self.key), self._path(self.key, self.door)
        return first + then if (first or self.at == self.key) and then else ""

    def _follow(self, action: str) -> Outcome:
        """Make the move if it is on a shortest way, otherwise the expert's."""
        matched = self.is_on_path(action)
        self.patched += not matched
        self._move(action if matched else self.way()[0])
        return Outcome(f"{'' if matched else '!'}{self.state}>", matched / self.whole, self._arrived, matched)

    def _move(self, move: str) -> None:
        self.at = self._beyond(self.at, move)
        self.holding = self.holding or self.at == self.key

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


def critique(completion: str, **columns: object) -> dict[str, list[str]]:
    """List the good and the bad moves of an episode, as feedback for Text2Grad.

    `completion` is the text after the prompt, "r@01>d!@01>"; a listed part is a move with the observation after it. A
    move that is good from a cell is good wherever it occurs, so no two parts contradict each other.
    """
    made: Sequence[tuple[str, str]] = MADE.findall(completion)
    grid = Keys(len(made) + 1)
    grid.begin(columns, random.Random(0))
    named: dict[str, list[str]] = {"good": [], "poor": []}
    for action, seen in made:
        named["good" if grid.is_on_path(action.strip()) else "poor"].append(action + seen)
        grid.act(action.strip())
    return {side: list(dict.fromkeys(parts)) for side, parts in named.items()}


def _cell(text: str) -> Cell:
    return int(text[0]), int(text[1])
