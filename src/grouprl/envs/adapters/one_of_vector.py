"""A vector environment of one place as an ordinary environment. Imports gymnasium."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate

from grouprl.core.errors import InputError

Info = Mapping[str, object]


class Drawing(Protocol):
    """Whatever draws the random numbers of an environment."""

    np_random: np.random.Generator


class OneOfVector(gymnasium.Env):
    """One episode in a vector environment of one place (what `gymnasium.make_vec` or a function of yours returns).

    The transition that ends the episode is the environment's own under every mode of autoreset: where the environment
    is reset within the same step (`SAME_STEP`), what it ended with is taken from `info["final_obs"]`; the step that
    only resets (`NEXT_STEP`) is never taken, because no action follows an end.
    """

    def __init__(self, vector: VectorEnv) -> None:
        """Wrap `vector`. Raises InputError if it has several places."""
        if vector.num_envs != 1:
            raise InputError(
                f"a vector environment of {vector.num_envs} environments",
                "it must hold one: batch.prompts × batch.group_size of them are made and act together",
                "Return one of 1 (gymnasium's num_envs)",
            )
        self._vector, self.spec, self.metadata = vector, vector.spec, vector.metadata
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[object, Info]:
        """Begin an episode; return its observation and info."""
        found, info = self._vector.reset(seed=seed, options=options)
        return self._only(found), _first(info)

    def step(self, action: object) -> tuple[object, object, bool, bool, Info]:
        """Take an action; return observation, reward, terminated, truncated, info."""
        found, reward, ended, cut, info = self._vector.step(np.asarray(action, self.action_space.dtype)[None])
        if (ended[0] or cut[0]) and self._vector.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP:
            if "final_obs" not in info:
                raise InputError(
                    "a vector environment that resets within a step has no info['final_obs']",
                    "the observation that an episode ended with is its last, not the first of the next",
                    "Use AutoresetMode.NEXT_STEP",
                )
            return info["final_obs"][0], reward[0], ended[0], cut[0], _first(info.get("final_info", {}))
        return self._only(found), reward[0], ended[0], cut[0], _first(info)

    def close(self) -> None:
        """Close the vector environment."""
        self._vector.close()

    @property
    def np_random(self) -> np.random.Generator:
        """The random generator of the environment; setting it seeds everything that happens by chance from now on."""
        whole = self._vector.unwrapped
        if isinstance(whole, AsyncVectorEnv):
            return cast("np.random.Generator", whole.get_attr("np_random")[0])
        return _drawing(whole).np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        whole = self._vector.unwrapped
        if isinstance(whole, AsyncVectorEnv):
            whole.set_attr("np_random", [value])  # the environment is in another process
        else:
            _drawing(whole).np_random = value

    def _only(self, found: object) -> object:
        return next(iter(iterate(self._vector.observation_space, found)))


def _drawing(whole: VectorEnv) -> Drawing:
    """Return what draws random numbers: the inner environment, or a vector environment computed as a whole."""
    return cast("Drawing", whole.envs[0].unwrapped if hasattr(whole, "envs") else whole)


def _first(info: Info) -> dict[str, object]:
    """Return the entries of the only place; those with a leading underscore say where an entry is known."""
    return {
        name: value[0] if isinstance(value, np.ndarray | list | tuple) and _by_place(value) else value
        for name, value in info.items()
        if not name.startswith("_")
    }


def _by_place(value: np.ndarray | Sequence[object]) -> bool:
    """Return whether an entry of infos has a value for the only place; one for all places may have any shape."""
    return getattr(value, "shape", None) != () and len(value) == 1
