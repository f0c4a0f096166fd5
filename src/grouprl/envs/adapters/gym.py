"""Gymnasium environments as text: observations are written out, and actions are words."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from grouprl.core.errors import InputError
from grouprl.envs.adapters import minigrid
from grouprl.envs.adapters.gymnasium_calls import begun, stepped
from grouprl.envs.environment import Observation, Step, misused
from grouprl.envs.spaces import SpaceWording, countable, spell
from grouprl.envs.success import End, Success

if TYPE_CHECKING:
    import gymnasium

    from grouprl.core.json_types import JsonMapping
    from grouprl.records.examples import Example


class GymEnvironment:
    """An episode of a Gymnasium environment.

    The example's column `seed` determines how the episode begins, and the seed of `reset` determines what happens by
    chance afterwards, so that completions of a group begin alike. An observation is the environment's, written out,
    followed by '>'. An action is one of the words or, without words, numbers separated by spaces. Any other text, and
    an action that the environment masks out (`info["action_mask"]`), is invalid: it costs a turn, is not passed to the
    environment, and is answered with '!' before the observation.
    """

    def __init__(
        self,
        make: Callable[[], object],
        words: Sequence[str],
        *,
        max_turns: int,
        instructions: str = "",
        decimals: int = 2,
        success: Success = Success(),  # noqa: B008 (it is frozen)
        invalid: float = -1.0,
    ) -> None:
        """Prepare an episode.

        Args:
            make: returns the Gymnasium environment.
            words: the word of each Discrete action, in order; () if actions are numbers.
            max_turns: actions after which the episode is cut off.
            instructions: text before the first observation.
            decimals: decimals of the numbers of a Box.
            success: the lowest total reward of a correct episode.
            invalid: reward of an invalid action.
        """
        self._make, self._wording, self._max_turns = make, SpaceWording(tuple(words), decimals), max_turns
        self._instructions, self._decimals, self._success = instructions, decimals, success
        self._invalid = invalid
        self._env: gymnasium.Env = None
        self._phase, self._turns, self._total = "new", 0, 0.0
        self._end: End = "none"
        self._text, self._state, self._legal = "", "", self._wording.words

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the episode. Raises InputError if the object was used before or the example has no seed."""
        if self._phase != "new":
            raise misused("reset() was called twice")
        if "seed" not in example.columns:
            raise InputError(f"Example '{example.id}' has no column 'seed'", "it says how the episode begins")
        from gymnasium.utils.seeding import np_random

        self._env, self._phase = self._make(), "playing"
        found, info = begun(self._env, int(example.columns["seed"]))
        # After the reset, which is to draw the same beginning for all completions of a group.
        self._env.unwrapped.np_random = np_random(seed)[0]
        return self._observe(found, info, self._instructions)

    def step(self, action: str) -> Step:
        """Apply an action. Raises InputError before `reset` and after the end."""
        if self._phase != "playing":
            raise misused(f"step({action!r}) was called when no episode was under way")
        self._turns += 1
        taken = self._wording.read(self._env.action_space, action, self._legal)
        if taken is None:
            late = self._turns >= self._max_turns
            self._ends("limit" if late else "none")
            self._total += self._invalid
            return Step(self._seen(f"!{self._text}"), self._invalid, truncated=late, valid=False)
        found, reward, terminated, truncated, info = stepped(self._env, taken)
        self._total += reward
        late = not terminated and (truncated or self._turns >= self._max_turns)
        self._ends("own" if terminated or truncated else "limit" if late else "none")
        return Step(self._observe(found, info), reward, terminated, late)

    def score(self) -> dict[str, float]:
        """Return `correct`: whether the total reward is a success; see `grouprl.envs.success`."""
        return {"correct": float(self._success.reached(self._total, self._end))}

    def close(self) -> None:
        """Close the Gymnasium environment."""
        if self._env is not None:
            self._env.close()
        self._env, self._phase = None, "closed"

    def demonstrate(self, rng: random.Random) -> str:
        """Return a random action, which shows only how actions are spelt."""
        return self._wording.any_action(self._env.action_space, self._legal, rng)

    def _ends(self, end: End) -> None:
        self._end, self._phase = end, "playing" if end == "none" else "ended"

    def _observe(self, found: object, info: JsonMapping, before: str = "") -> Observation:
        # Once the episode has ended, masks often allow nothing, and nothing needs to be allowed.
        self._legal = self._wording.legal(info.get("action_mask") if self._phase == "playing" else None)
        if minigrid.is_minigrid(self._env):
            shown = minigrid.describe(self._env, cast("JsonMapping", found))
            self._text, self._state = f"{shown}>", minigrid.state_key(self._env)
        else:
            space = self._env.observation_space
            self._text = f"{spell(space, found, self._decimals)}>"
            self._state = self._text[:-1] if countable(space) else ""
        return self._seen(before + self._text)

    def _seen(self, text: str) -> Observation:
        return Observation(text, self._state, legal=self._legal if self._phase == "playing" else ())
