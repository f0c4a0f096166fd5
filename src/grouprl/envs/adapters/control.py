"""Gymnasium environments without text: observations are arrays, actions are numbers or arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.adapters.gymnasium_calls import begun, one_number, stepped
from grouprl.envs.adapters.gymnasium_spaces import MASK, choices_of, own_action, reader_of
from grouprl.envs.environment import COST, ArrayObservation, Step, misused

if TYPE_CHECKING:
    import gymnasium

    from grouprl.records.examples import Example


class ControlEnvironment:
    """An episode of a Gymnasium environment whose observations are arrays; those of a Box are flattened.

    The example's column `seed` determines how the episode begins, and the seed of `reset` determines what happens by
    chance afterwards, so that the samples of a group begin alike. A mask of legal actions is read from
    `info["action_mask"]`, or from the entry `action_mask` of the observation.
    """

    def __init__(self, make: Callable[[], object], *, success: float | None = None) -> None:
        """Prepare an episode.

        Args:
            make: returns the Gymnasium environment.
            success: the lowest total reward of a correct episode; None: rewards are graded.
        """
        self._make, self._success = make, success
        self._env: gymnasium.Env = None
        self._playing, self._total, self._used = False, 0.0, False
        self._cost: float | None = None

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Begin the episode. Raises InputError if the object was used before or the example has no seed."""
        if self._used:
            raise misused("reset() was called twice")
        if "seed" not in example.columns:
            raise InputError(f"Example '{example.id}' has no column 'seed'", "it says how the episode begins")
        from gymnasium.utils.seeding import np_random

        self._env, self._used, self._playing = self._make(), True, True
        found, info = begun(self._env, int(example.columns["seed"]))
        # After the reset, which is to draw the same beginning for all samples of a group.
        self._env.unwrapped.np_random = np_random(seed)[0]
        self._read, self._choices = reader_of(self._env.observation_space), choices_of(self._env.action_space)
        return self._shown(found, info)

    def step(self, action: object) -> Step:
        """Apply an action.

        Raises:
            InputError: before `reset` and after the end, the action is not in its space, or the reward is not a number.
        """
        if not self._playing:
            raise misused(f"step({action!r}) was called when no episode was under way")
        found, reward, terminated, truncated, info = stepped(self._env, self._fitted(action))
        self._total += reward
        if "cost" in info:
            self._cost = (self._cost or 0.0) + one_number(info["cost"], "cost")
        self._playing = not (terminated or truncated)
        late = truncated and not terminated
        return Step(self._shown(found, info), reward, terminated, late)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        """Return `correct`, whether the total reward is a success, if a threshold is set, and `#cost`, the sum of the
        costs, if the environment states them in `info["cost"]`.
        """
        known = {} if self._success is None else {"correct": float(self._total >= self._success)}
        return known if self._cost is None else {**known, COST: self._cost}

    def close(self) -> None:
        """Close the Gymnasium environment."""
        if self._env is not None:
            self._env.close()
        self._env, self._playing, self._used = None, False, True

    def _shown(self, found: object, info: Mapping[str, object]) -> ArrayObservation:
        values, mask = self._read(found)
        return ArrayObservation(values, info.get(MASK) if mask is None else mask)

    def _fitted(self, action: object) -> object:
        """Return an action in the environment's type, shape and counting.

        Bounds of a Box are not enforced here: they are for whole steps (`grouprl.envs.array_spaces.bounded`), and a
        bound rounded to float32 may lie outside of the environment's own.
        """
        space = self._env.action_space
        if isinstance(action, int) and action in self._choices:
            return action + int(space.start)
        given = np.asarray(action)
        if given.size != math.prod(space.shape) or not np.isfinite(given).all():
            raise InputError(f"the action {action!r}", f"actions are of {space}", "Take them from the task's spaces")
        fitted = own_action(space, given)
        if not np.issubdtype(space.dtype, np.floating) and not space.contains(fitted):
            raise InputError(f"the action {action!r}", f"actions are of {space}", "Take them from the task's spaces")
        return fitted
