"""A wrapper of Gymnasium environments in which one decision is several actions in a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from grouprl.core.errors import InputError
from grouprl.envs.adapters.gymnasium_calls import one_number, stepped
from grouprl.envs.adapters.gymnasium_spaces import MASK


class ActionChunks(gymnasium.Wrapper):
    """Decide on `length` actions at once, from the observation before the first; their rewards are added up.

    A policy's log-prob of a chunk is the sum over its actions, and a chunk has one advantage. An episode that ends
    inside a chunk leaves the rest of it undone. A numbered action becomes `length` numbers, and a vector one that is
    `length` times as long. After sequence reinforcement learning (Patel & Siegelmann, arXiv:2410.08979), without its
    model and its critic of single actions.

    Args:
        env: the environment.
        length: actions of a chunk; 1 leaves the environment as it is, but for the shape of its actions.

    Raises:
        InputError: a length below 1, actions that are neither one number nor a vector, or above a length of 1 a mask of
            legal actions.
    """

    def __init__(self, env: gymnasium.Env, length: int = 1) -> None:
        super().__init__(env)
        if length < 1:
            raise InputError(f"chunks of {length} actions", "a decision is at least one action", "Set length to 1")
        self.length, self._single = length, env.action_space
        self.action_space = _repeated(env.action_space, length)
        self._check_mask(getattr(env.observation_space, "spaces", {}))

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[object, dict[str, object]]:
        """Begin an episode; return its observation and info."""
        found: tuple[object, dict[str, object]] = self.env.reset(seed=seed, options=options)
        self._check_mask(found[-1] if isinstance(found, tuple) else {})
        return found

    def step(self, action: object) -> tuple[object, SupportsFloat, bool, bool, dict[str, object]]:
        """Take the actions one after the other until the episode ends; return the last observation, with the rewards
        added up, and the costs that `info` states.
        """
        paid, costs, chunk = 0.0, [], self._apart(np.asarray(action))
        for single in chunk:
            observation, reward, terminated, truncated, info = stepped(self.env, single)
            self._check_mask({} if terminated or truncated else info)
            paid += reward
            costs += [one_number(info["cost"], "cost")] if "cost" in info else []
            if terminated or truncated:
                break
        return observation, paid, terminated, truncated, {**info, **({"cost": sum(costs)} if costs else {})}

    def _check_mask(self, entries: object) -> None:
        # A mask holds for the next action alone: what is legal after it is not known when the chunk is decided.
        if self.length > 1 and isinstance(entries, Mapping) and MASK in entries:
            raise InputError(
                f"a mask of legal actions in chunks of {self.length} actions",
                "it is that of the next action, and a chunk is decided before the mask of its second one is known",
                "Leave ActionChunks out; if the environment bears any action, remove the mask in a wrapper within it",
            )

    def _apart(self, action: np.ndarray) -> list[object]:
        """Return the actions of a chunk."""
        if isinstance(self._single, Discrete):
            return [int(each + self._single.start) for each in action.reshape(self.length)]
        return list(action.reshape(self.length, -1))


def _repeated(space: gymnasium.Space, length: int) -> gymnasium.Space:
    """Return the space of `length` actions of `space`."""
    if isinstance(space, Discrete):
        return MultiDiscrete([space.n] * length)
    if isinstance(space, Box) and len(space.shape) == 1:
        return Box(np.tile(space.low, length), np.tile(space.high, length), dtype=space.dtype.type)
    raise InputError(
        f"chunks of actions in {space}", "a chunk is of numbers of choices, or of vectors", "Leave the wrapper out"
    )
