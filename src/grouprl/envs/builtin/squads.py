"""Small worlds of several agents over arrays: a matrix game, a grid of hidden goals, a grid to cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.joint_world import InTurns, JointStep, told
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.records.examples import Example

CLIMBING = ((11.0, -30.0, 0.0), (-30.0, 7.0, 6.0), (0.0, 0.0, 5.0))
"""Claus and Boutilier's climbing game: the best pair stands beside the worst ones."""
MOVES = np.array([(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0)])
"""Stay, and one cell in each direction."""
Action = int | np.ndarray


class MatrixWorld:
    """Two agents choose once and at once, and both earn payoff[row][column]."""

    agents: ClassVar[tuple[str, ...]] = ("row", "column")

    def __init__(self, payoff: Sequence[Sequence[float]]) -> None:
        self._payoff = np.asarray(payoff, dtype=float)
        if self._payoff.ndim != 2 or len(set(self._payoff.shape)) != 1 or not np.isfinite(self._payoff).all():
            raise InputError(
                f"payoff = {payoff}",
                "it must be a square matrix of finite numbers, with a line for each action of the agent `row`",
            )
        self.spaces = Spaces(Box((1,)), Discrete(len(self._payoff)))
        self._earned = float("nan")

    def begin(self, example: Example, seed: int) -> dict[str, object]:
        """Let both choose; there is nothing to see."""
        return dict.fromkeys(self.agents, np.zeros(1))

    def act(self, actions: Mapping[str, Action]) -> JointStep:
        """Pay both."""
        self._earned = float(self._payoff[int(actions["row"]), int(actions["column"])])
        return JointStep({}, dict.fromkeys(self.agents, self._earned))

    def correct(self) -> float:
        """Return whether no other pair pays more."""
        return float(self._earned == self._payoff.max())

    def close(self) -> None:
        """Do nothing: no resources are held."""


class ColorGridWorld:
    """A leader knows which colour is wanted, a follower sees only where everybody is (ColorGrid, arXiv 2501.10593).

    A grid has blocks of two colours. An agent on a block takes it, and it comes back elsewhere: one of the wanted
    colour pays both agents 1, another costs both `penalty`. The wanted colour changes with probability `switch` each
    round. *Differs from the paper*, of which only the abstract was read: two colours, one follower, sizes of our own.
    """

    agents: ClassVar[tuple[str, ...]] = ("leader", "follower")

    def __init__(self, size: int, blocks: int, penalty: float, switch: float, rounds: int) -> None:
        if size < 2 or blocks < 1 or rounds < 1 or size * size < 2 * blocks + 2:
            raise InputError(
                f"size={size}, blocks={blocks}, rounds={rounds}",
                "two agents and both colours' blocks need a cell each, and there is at least one round",
            )
        if not 0 <= switch <= 1:
            raise InputError(f"switch={switch}", "it must be a probability")
        self._size, self._count, self._penalty = size, blocks, penalty
        self._switch, self._rounds = switch, rounds
        self.spaces = Spaces(Box((4 * size * size + 2,), 0.0, 1.0), Discrete(len(MOVES)))
        self._round, self._right, self._wrong = 0, 0, 0

    def begin(self, example: Example, seed: int) -> dict[str, object]:
        """Lay agents and blocks, and choose the wanted colour."""
        self._luck = np.random.default_rng(seed)
        cells = self._luck.permutation(self._size**2)[: 2 + 2 * self._count]
        self._places_a = np.stack([cells[:2] // self._size, cells[:2] % self._size], 1)
        self._colour = np.zeros(self._size**2, dtype=np.int64)
        self._colour[cells[2 : 2 + self._count]], self._colour[cells[2 + self._count :]] = 1, 2
        self._wanted = int(self._luck.integers(1, 3))
        return self._seen()

    def act(self, actions: Mapping[str, Action]) -> JointStep:
        """Move both, take the blocks under them, and perhaps change the wanted colour."""
        moves_a = MOVES[[int(actions[agent]) for agent in self.agents]]
        self._places_a = np.clip(self._places_a + moves_a, 0, self._size - 1)
        reward = sum(self._taken(int(cell)) for cell in dict.fromkeys(self._cells().tolist()))
        if self._luck.random() < self._switch:
            self._wanted = 3 - self._wanted
        self._round += 1
        rewards = dict.fromkeys(self.agents, float(reward))
        if self._round < self._rounds:
            return JointStep(self._seen(), rewards)
        return JointStep({}, rewards, self._seen())

    def correct(self) -> float:
        """Return 1 if more wanted blocks were taken than unwanted ones, else 0."""
        return float(self._right > self._wrong)

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _cells(self) -> np.ndarray:
        cells: np.ndarray = self._places_a @ np.array([self._size, 1])
        return cells

    def _taken(self, cell: int) -> float:
        colour = int(self._colour[cell])
        if colour == 0:
            return 0.0
        self._colour[cell] = 0
        free = np.flatnonzero(self._colour == 0)
        self._colour[self._luck.choice(free[~np.isin(free, self._cells())])] = colour
        right = colour == self._wanted
        self._right, self._wrong = self._right + right, self._wrong + (not right)
        return 1.0 if right else -self._penalty

    def _seen(self) -> dict[str, object]:
        """Return, per agent: its cell, the other's, the blocks of each colour, and for the leader the wanted one."""
        at_ac = np.eye(self._size**2)[self._cells()]
        blocks = np.concatenate([self._colour == 1, self._colour == 2])
        goal = np.eye(2)[self._wanted - 1]
        return {
            "leader": np.concatenate([at_ac[0], at_ac[1], blocks, goal]),
            "follower": np.concatenate([at_ac[1], at_ac[0], blocks, 0 * goal]),
        }


class CrossingWorld:
    """Three agents cross a grid to goals of their own; an agent that arrives leaves, and the third comes in the third
    round.

    A move into a cell of another agent is not made and costs 0.1, each round 0.05, and arriving pays 1, to each agent
    its own.
    """

    agents: ClassVar[tuple[str, ...]] = ("first", "second", "late")

    def __init__(self, size: int, rounds: int) -> None:
        if size < 3 or rounds < 3:
            raise InputError(
                f"size={size}, rounds={rounds}",
                "the grid has at least 3 cells a side, and at least 3 rounds are played",
            )
        self._size, self._rounds, self._round = size, rounds, 0
        corner = size - 1
        self._at: dict[str, tuple[int, int]] = {"first": (0, 0), "second": (0, corner)}
        self._goals = {"first": (corner, corner), "second": (corner, 0), "late": (0, size // 2)}
        self._arrived, self._late_came = 0, False
        self.spaces = Spaces(Box((3 * size * size,), 0.0, 1.0), Discrete(len(MOVES)))

    def begin(self, example: Example, seed: int) -> dict[str, object]:
        """Let the first two begin in their corners; nothing is left to chance."""
        return self._seen()

    def act(self, actions: Mapping[str, Action]) -> JointStep:
        """Move the agents in their order, remove those that arrive, and add the late one."""
        rewards = {agent: self._moved(agent, int(action)) for agent, action in actions.items()}
        self._round += 1
        enters = (self._size - 1, self._size // 2)
        if self._round >= 2 and not self._late_came and enters not in self._at.values():
            self._at["late"], self._late_came = enters, True
        if self._round < self._rounds:
            return JointStep(self._seen(), rewards)
        return JointStep({}, rewards, self._seen())

    def correct(self) -> float:
        """Return 1 if all agents arrived, else 0."""
        return float(self._arrived == len(self.agents))

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _moved(self, agent: str, action: int) -> float:
        to = tuple(np.clip(np.add(self._at[agent], MOVES[action]), 0, self._size - 1).tolist())
        if to != self._at[agent] and to in self._at.values():
            return -0.15
        self._at[agent] = (to[0], to[1])
        if to != self._goals[agent]:
            return -0.05
        del self._at[agent]
        self._arrived += 1
        return 0.95

    def _seen(self) -> dict[str, object]:
        eye = np.eye(self._size**2)

        def cell(place: tuple[int, int]) -> int:
            return place[0] * self._size + place[1]

        seen: dict[str, object] = {}
        for agent, place in self._at.items():
            others = sum((eye[cell(p)] for a, p in self._at.items() if a != agent), np.zeros(self._size**2))
            seen[agent] = np.concatenate([eye[cell(place)], others, eye[cell(self._goals[agent])]])
        return seen


class MatrixGame(InTurns):
    """Two agents choose once and at once, and both earn the payoff of the pair: by default the climbing game.

    With `strategies` they are told the number of one.
    """

    agents = MatrixWorld.agents

    def __init__(
        self,
        payoff: Sequence[Sequence[float]] = CLIMBING,
        parents: str | Mapping[str, tuple[str, ...]] = "",
        strategies: int = 1,
    ) -> None:
        super().__init__(told(MatrixWorld(payoff), strategies), parents=parents)


class ColorGrid(InTurns):
    """A leader knows the wanted colour, a follower has to infer it; both earn what either takes."""

    agents = ColorGridWorld.agents

    def __init__(
        self,
        size: int = 4,
        blocks: int = 2,
        penalty: float = 1.0,
        switch: float = 0.0,
        rounds: int = 12,
        parents: str | Mapping[str, tuple[str, ...]] = "",
        team: bool = False,
    ) -> None:
        super().__init__(ColorGridWorld(size, blocks, penalty, switch, rounds), parents=parents, team=team)


class Crossing(InTurns):
    """Three agents cross a grid without running into each other; those that arrive leave, and one comes late."""

    agents = CrossingWorld.agents

    def __init__(
        self,
        size: int = 3,
        rounds: int = 10,
        parents: str | Mapping[str, tuple[str, ...]] = "",
        team: bool = False,
    ) -> None:
        super().__init__(CrossingWorld(size, rounds), parents=parents, team=team)
