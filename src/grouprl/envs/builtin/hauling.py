"""Worlds in which agents choose together: QMIX's two-step game, and loads of which some are too heavy for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.joint_world import JointStep, Together
from grouprl.protocols import Box, Discrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example

Action = int | np.ndarray
SAFE = ((7.0, 7.0), (7.0, 7.0))
RISKY = ((0.0, 1.0), (1.0, 8.0))
"""Payoffs of the two states of the second step, by the actions of both."""


class TwoStepWorld:
    """The first agent chooses a matrix, then both are paid by it: 7 whatever they do, or up to 8 (QMIX, section 5.1).

    The best is 8. A learner that adds up the agents' own values cannot fit the second matrix, and takes the first.
    """

    agents: ClassVar[tuple[str, ...]] = ("first", "second")
    spaces = Spaces(Box((3,), 0.0, 1.0), Discrete(2))

    def __init__(self) -> None:
        self._state, self._earned = 0, float("nan")

    def begin(self, example: Example, seed: int) -> dict[str, object]:
        """Show both the first state."""
        return self._seen()

    def act(self, actions: Mapping[str, Action]) -> JointStep:
        """Go to the state that the first agent chose, or pay there."""
        first, second = (int(actions[agent]) for agent in self.agents)
        if self._state == 0:
            self._state = 1 + first
            return JointStep(self._seen(), dict.fromkeys(self.agents, 0.0))
        self._earned = (SAFE, RISKY)[self._state - 1][first][second]
        return JointStep({}, dict.fromkeys(self.agents, self._earned))

    def correct(self) -> float:
        """Return 1 if nothing pays more, else 0."""
        return float(self._earned == 8)

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _seen(self) -> dict[str, object]:
        return dict.fromkeys(self.agents, np.eye(3)[self._state])


class HaulingWorld:
    """Two agents on a grid choose loads to walk to, as sub-goals; a heavy load needs both of them at once (GMAH).

    A choice is the number of a load. Both then walk towards theirs, a cell a step, until both have arrived or
    `patience` steps are over: then they choose anew. A light load pays 0.3 to whoever stands at it, a heavy one 1 if
    both do, and costs 0.3 if one tries alone; a step costs 0.01. A taken load comes back elsewhere.
    """

    agents: ClassVar[tuple[str, ...]] = ("first", "second")

    def __init__(self, size: int, light: int, heavy: int, patience: int, rounds: int) -> None:
        if size < 3 or light < 0 or heavy < 1 or light + heavy + 2 > size * size or patience < 1 or rounds < 1:
            raise InputError(
                f"size={size}, light={light}, heavy={heavy}, patience={patience}, rounds={rounds}",
                "agents and loads need a cell each, at least one load is heavy, and patience and rounds are at least 1",
            )
        self._size, self._patience, self._rounds, self._round = size, patience, rounds, 0
        self._heavy_l = np.arange(light + heavy) >= light
        self.spaces = Spaces(Box((3 * (light + heavy) + 3,), -1.0, 1.0), Discrete(light + heavy))

    def begin(self, example: Example, seed: int) -> dict[str, object]:
        """Lay out agents and loads."""
        self._luck = np.random.default_rng(seed)
        cell_n = self._luck.permutation(self._size**2)[: 2 + len(self._heavy_l)]
        place_n2 = np.stack([cell_n // self._size, cell_n % self._size], 1)
        self._at_a2, self._load_l2 = place_n2[:2], place_n2[2:]
        return self._seen()

    def act(self, actions: Mapping[str, Action]) -> JointStep:
        """Walk to the loads that were chosen, and take those at which enough agents stand."""
        goal_a = np.array([int(actions[agent]) for agent in self.agents])
        reward = -0.01 * self._walk(self._load_l2[goal_a]) + self._taken(goal_a)
        self._round += 1
        over = self._round == self._rounds
        return JointStep({} if over else self._seen(), dict.fromkeys(self.agents, reward))

    def correct(self) -> None:
        """Return None: hauling is only rewarded."""

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _walk(self, goal_a2: np.ndarray) -> int:
        """Walk to the goals along rows, then columns; return how many steps it took."""
        for step in range(self._patience):
            if bool((self._at_a2 == goal_a2).all()):
                return step
            way_a2 = np.sign(goal_a2 - self._at_a2)
            way_a2[way_a2[:, 0] != 0, 1] = 0
            self._at_a2 = self._at_a2 + way_a2
        return self._patience

    def _taken(self, goal_a: np.ndarray) -> float:
        """Take loads that were chosen and reached; return what they pay."""
        there_a = (self._at_a2 == self._load_l2[goal_a]).all(1)
        paid = 0.0
        for load in dict.fromkeys(goal_a[there_a].tolist()):
            carriers = int((goal_a[there_a] == load).sum())
            if self._heavy_l[load] and carriers < 2:
                paid -= 0.3
                continue
            paid += 1.0 if self._heavy_l[load] else 0.3
            self._load_l2[load] = self._free_cell()
        return paid

    def _free_cell(self) -> np.ndarray:
        used = {tuple(place) for place in [*self._at_a2.tolist(), *self._load_l2.tolist()]}
        free = [(x, y) for x in range(self._size) for y in range(self._size) if (x, y) not in used]
        return np.array(free[int(self._luck.integers(len(free)))])

    def _seen(self) -> dict[str, object]:
        """Return, per agent: where each load is from here and whether it is heavy, where the other is, the time."""
        seen: dict[str, object] = {}
        for number, agent in enumerate(self.agents):
            here_2 = self._at_a2[number]
            loads = np.concatenate([(self._load_l2 - here_2) / self._size, self._heavy_l[:, None]], 1)
            other = (self._at_a2[1 - number] - here_2) / self._size
            seen[agent] = np.concatenate([loads.ravel(), other, [self._round / self._rounds]])
        return seen


class TwoStep(Together):
    """QMIX's two-step game, played by one policy."""

    def __init__(self) -> None:
        super().__init__(TwoStepWorld())


class Hauling(Together):
    """Two agents that choose loads to walk to as sub-goals, played by one policy."""

    def __init__(self, size: int = 5, light: int = 2, heavy: int = 2, patience: int = 6, rounds: int = 6) -> None:
        super().__init__(HaulingWorld(size, light, heavy, patience, rounds))
