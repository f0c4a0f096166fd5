"""Gymnasium environments as they are: vectors in, numbers or vectors out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import Step

if TYPE_CHECKING:
    import gymnasium

    from grouprl.records.examples import Example


class ControlEnvironment:
    """An episode of a Gymnasium environment whose observations are boxes of numbers, flattened.

    The example's column `seed` determines how the episode begins, the seed of `reset` what chance does afterwards,
    so that the samples of a group begin alike. Vectors of actions are clipped to their box.
    """

    def __init__(self, make: Callable[[], object], *, success: float | None = None) -> None:
        """Prepare an episode.

        Args:
            make: returns the Gymnasium environment.
            success: total reward from which an episode is correct; None: rewards are graded.
        """
        self._make, self._success = make, success
        self._env: gymnasium.Env = None
        self._playing, self._total, self._used = False, 0.0, False

    def reset(self, example: Example, seed: int) -> np.ndarray:
        """Begin the episode. Raises InputError if the object was used before or the example has no seed."""
        if self._used:
            raise self._misuse("reset() was called twice")
        if "seed" not in example.columns:
            raise InputError(f"Example '{example.id}' has no column 'seed'", "it says how the episode begins")
        from gymnasium.utils.seeding import np_random

        self._env, self._used, self._playing = self._make(), True, True
        found, _ = self._env.reset(seed=int(example.columns["seed"]))
        self._env.unwrapped.np_random = np_random(seed)[0]
        return _flat(found)

    def step(self, action: object) -> Step:
        """Act. Raises InputError before `reset` and after the end."""
        if not self._playing:
            raise self._misuse(f"step({action!r}) was called when no episode was under way")
        found, reward, terminated, truncated, _ = self._env.step(self._fitted(cast("int | np.ndarray", action)))
        self._total += float(reward)
        self._playing = not (terminated or truncated)
        late = bool(truncated) and not terminated
        return Step(_flat(found), float(reward), bool(terminated), late)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        """Return `correct`, whether the total reward is a success; nothing where no number says so."""
        return {} if self._success is None else {"correct": float(self._total >= self._success)}

    def close(self) -> None:
        """Close the Gymnasium environment."""
        if self._env is not None:
            self._env.close()
        self._env, self._playing, self._used = None, False, True

    def _fitted(self, action: int | np.ndarray) -> object:
        space = self._env.action_space
        if not hasattr(space, "low"):
            return int(action) + int(space.start)
        return np.clip(np.reshape(np.asarray(action, dtype=space.dtype), space.shape), space.low, space.high)

    def _misuse(self, what: str) -> InputError:
        return InputError(what, "an object is one episode: reset, step until the end, score, close")


def _flat(found: object) -> np.ndarray:
    return np.asarray(found, dtype=np.float32).reshape(-1)
