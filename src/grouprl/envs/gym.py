"""Gymnasium environments as text: observations are written out, actions are words."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from grouprl.envs.environment import Observation, Step
from grouprl.errors import InputError

if TYPE_CHECKING:
    from grouprl.tasks.task import Question

LARGEST_BOX = 64
"""Numbers in an observation beyond which it is an image or the like."""


class GymEnvironment:
    """An episode of a Gymnasium environment with Discrete actions.

    The question's column `seed` determines how the episode begins, the seed of `reset` what chance does afterwards,
    so that the answers of a group begin alike. An observation is the environment's, written out, and '>'. A word that
    is no action, or that the environment masks out (`info["action_mask"]`), is invalid: it costs a turn, is not given
    to the environment, and is answered with '!' before the observation.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        words: Sequence[str],
        *,
        max_turns: int,
        instructions: str = "",
        decimals: int = 2,
        success: float | None = None,
        invalid: float = -1.0,
    ) -> None:
        """Prepare an episode.

        Args:
            make: returns the Gymnasium environment.
            words: the word of each action, in order.
            max_turns: actions after which the episode is cut off.
            instructions: text before the first observation.
            decimals: decimals of the numbers of a Box.
            success: total reward from which an episode is correct; None: any above 0.
            invalid: reward of an invalid action.
        """
        self._make, self._words, self._max_turns = make, tuple(words), max_turns
        self._instructions, self._decimals, self._success = instructions, decimals, success
        self._invalid = invalid
        self._env: Any = None
        self._phase, self._turns, self._total = "new", 0, 0.0
        self._text, self._legal = "", self._words

    def reset(self, question: Question, seed: int) -> Observation:
        """Begin the episode. Raises InputError if the object was used before or the question has no seed."""
        if self._phase != "new":
            raise self._misuse("reset() was called twice")
        if "seed" not in question.columns:
            raise InputError(f"Question '{question.id}' has no column 'seed'", "it says how the episode begins")
        from gymnasium.utils.seeding import np_random

        self._env, self._phase = self._make(), "playing"
        found, info = self._env.reset(seed=int(question.columns["seed"]))
        self._env.unwrapped.np_random = np_random(seed)[0]
        return self._observe(found, info, self._instructions)

    def step(self, action: str) -> Step:
        """Act. Raises InputError before `reset` and after the end."""
        if self._phase != "playing":
            raise self._misuse(f"step({action!r}) was called when no episode was under way")
        self._turns += 1
        word = action.strip()
        if word not in self._legal:
            late = self._turns >= self._max_turns
            self._phase = "ended" if late else "playing"
            self._total += self._invalid
            return Step(self._seen(f"!{self._text}"), self._invalid, truncated=late, valid=False)
        number = int(self._env.action_space.start) + self._words.index(word)
        found, reward, terminated, truncated, info = self._env.step(number)
        self._total += float(reward)
        late = not terminated and (bool(truncated) or self._turns >= self._max_turns)
        if terminated or late:
            self._phase = "ended"
        return Step(self._observe(found, info), float(reward), bool(terminated), late)

    def score(self) -> dict[str, float]:
        """Return `correct`: whether the total reward is a success."""
        good = self._total > 0 if self._success is None else self._total >= self._success
        return {"correct": float(good)}

    def close(self) -> None:
        """Close the Gymnasium environment."""
        if self._env is not None:
            self._env.close()
        self._env, self._phase = None, "closed"

    def demonstrate(self, rng: random.Random) -> str:
        """Return any action: it shows how actions are spelt, no more."""
        return rng.choice(self._legal)

    def _observe(self, found: Any, info: Any, before: str = "") -> Observation:
        mask = info.get("action_mask")
        allowed = self._words if mask is None else tuple(w for w, may in zip(self._words, mask, strict=True) if may)
        self._legal = allowed or self._words
        self._text = f"{spell(self._env.observation_space, found, self._decimals)}>"
        return self._seen(before + self._text)

    def _seen(self, text: str) -> Observation:
        state = self._text[:-1] if countable(self._env.observation_space) else ""
        return Observation(text, state, legal=self._legal if self._phase == "playing" else ())

    def _misuse(self, what: str) -> InputError:
        return InputError(what, "an object is one episode: reset, step until the end, score, close")


def spell(space: Any, value: Any, decimals: int) -> str:
    """Return an observation as text: numbers with spaces between, "name value" for the entries of a Dict."""
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        return " ".join(spell(inner, part, decimals) for inner, part in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Dict):
        return " ".join(f"{name} {spell(inner, value[name], decimals)}" for name, inner in space.spaces.items())
    if isinstance(space, spaces.Box):
        return " ".join(_decimal(float(number), decimals) for number in value.ravel())
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        return " ".join(str(int(number)) for number in value.ravel())
    return str(value) if isinstance(space, spaces.Text) else str(int(value))


def signs(space: Any) -> str:
    """Return the characters that `spell` uses.

    Raises:
        InputError: for a space that cannot be written out: of another kind, or too large.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        return " ".join(map(signs, space.spaces))
    if isinstance(space, spaces.Dict):
        return " ".join(f"{name} {signs(inner)}" for name, inner in space.spaces.items())
    if isinstance(space, spaces.Box) and math.prod(space.shape) <= LARGEST_BOX:
        return "0123456789.- infa"
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        return "0123456789 -"
    if isinstance(space, spaces.Discrete):
        return "0123456789-"
    if isinstance(space, spaces.Text):
        return "".join(sorted(space.character_set))
    raise InputError(
        f"The observations {space} cannot be written out",
        f"they are Discrete, Text, a Box of at most {LARGEST_BOX} numbers, or a Tuple or Dict of these",
        "Use a wrapper that describes them, such as gymnasium.wrappers.TransformObservation.",
    )


def countable(space: Any) -> bool:
    """Whether equal observations are to be expected: nothing in the space is a real number."""
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        return all(map(countable, space.spaces))
    if isinstance(space, spaces.Dict):
        return all(map(countable, space.spaces.values()))
    return not isinstance(space, spaces.Box)


def _decimal(number: float, decimals: int) -> str:
    """Return a number without the minus of a zero."""
    return f"{round(number, decimals) + 0.0:.{decimals}f}"
