"""Worlds in which several agents act at once, played by one policy that chooses all of their actions together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.envs.joint_world import JointWorld
from grouprl.protocols import Box, DictSpace, Discrete, MultiDiscrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example


class Together:
    """An environment whose action is the vector of all agents' actions, and whose observation `own` has a row for each.

    It is for policies whose agents decide by their own rows alone, but learn together (`model: team_values`). A reward
    is the mean of the agents'.

    Args:
        world: a world whose agents see arrays of one shape, choose numbers, and act from its beginning to its end.

    Raises:
        InputError: a world with other spaces.
    """

    def __init__(self, world: JointWorld) -> None:
        single = world.spaces
        if not isinstance(single.action, Discrete) or not isinstance(single.observation, Box):
            raise InputError(
                f"agents that see {single.observation} and act with {single.action}",
                "agents that act together see one array each and choose a number",
                "Wrap the world in grouprl.envs.joint_world.InTurns",
            )
        self._world, self._agents, box = world, tuple(world.agents), single.observation
        count = len(self._agents)
        low, high = (x * count if isinstance(x, tuple) else x for x in (box.low, box.high))
        self.spaces = Spaces(
            DictSpace({"own": Box((count, *box.shape), low, high, box.dtype)}),
            MultiDiscrete((single.action.count,) * count),
        )
        self._phase = "new"

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Begin the episode. Raises InputError if the object was used before."""
        if self._phase != "new":
            raise _misuse("reset() was called twice")
        self._phase = "playing"
        return self._shown(self._world.begin(example, seed))

    def step(self, action: np.ndarray) -> Step:
        """Let all agents act."""
        if self._phase != "playing":
            raise _misuse(f"step({action!r}) was called when no episode was under way")
        found = self._world.act({agent: int(a) for agent, a in zip(self._agents, action, strict=True)})
        reward = float(np.mean([found.rewards.get(agent, 0.0) for agent in self._agents]))
        if found.seen:
            self._last = self._shown(found.seen)
            return Step(self._last, reward)  # type: ignore[arg-type]
        self._phase = "ended"
        last = self._shown(found.finals) if found.finals else self._last
        return Step(last, reward, not found.finals, bool(found.finals))  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        """Return `correct`, if the world says it."""
        correct = self._world.correct()
        return {} if correct is None else {"correct": correct}

    def close(self) -> None:
        """Close the world."""
        self._phase = "closed"
        self._world.close()

    def _shown(self, seen: Mapping[str, object]) -> ArrayObservation:
        if set(seen) != set(self._agents):
            raise InputError(
                f"the world shows {', '.join(sorted(seen))}",
                f"all of {', '.join(self._agents)} act at once, in every round",
                "Wrap the world in grouprl.envs.joint_world.InTurns, where agents may come and go",
            )
        self._last = ArrayObservation({"own": np.stack([np.asarray(seen[agent]) for agent in self._agents])})
        return self._last


def _misuse(what: str) -> InputError:
    return InputError(what, "an object is one episode: reset, step until the end, score, close")
