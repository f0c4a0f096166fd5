"""Adapter to Gymnasium."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.envs.adapters.gym import GymEnvironment
from grouprl.envs.adapters.gymnasium_calls import closed, made_in_time
from grouprl.envs.adapters.minigrid import is_minigrid
from grouprl.envs.spaces import action_numbers, number_words, signs
from grouprl.envs.success import Success
from grouprl.tasks.adapters.gymnasium_makers import made
from grouprl.tasks.environments import SeededTask
from grouprl.tasks.registry import register_task

if TYPE_CHECKING:
    import gymnasium

WORDS = {
    "Blackjack": "sh",
    "CartPole": "lr",
    "CliffWalking": "urdl",
    "FrozenLake": "ldru",
    "FrozenLake8x8": "ldru",
    "MiniGrid": "lrfpdte",
    "MountainCar": "lnr",
    "Taxi": "snewpd",
}
"""The actions of well-known environments: stick, hit; left, right; south, north, east, west, pick up, drop; left,
right, forward, pick up, drop, toggle, end; …"""
MOST_TURNS = 100
NUMBER_SIGNS = 8
"""Characters of a number in an action, including the space after it."""


@register_task("gym", argument="id")
class Gym(SeededTask):
    """Act in a Gymnasium environment: gym:FrozenLake-v1, gym:minigrid:MiniGrid-Empty-5x5-v0.

    A prompt is a seed for the beginning of an episode; later chance events differ between its completions. An
    observation is the environment's, written out, followed by '>' (MiniGrid's views are described); a Discrete action
    is a word, any other action is numbers separated by spaces. The episode is correct if its total reward reaches
    `success`, or if the environment itself ended it and its total reward reaches the environment's threshold, or is
    above 0 if there is none. Demonstrations are random actions, which show only how actions are spelt.
    """

    id: str = Field(min_length=1, description="what gymnasium.make takes; a module to import may stand before a colon")
    config: JsonObject = Field(default_factory=dict, description="further arguments of gymnasium.make")
    actions: tuple[str, ...] | None = Field(
        None, description="the word of each action; none: a letter in well-known environments, else its number"
    )
    instructions: str = Field("", description="text before the first observation")
    decimals: int = Field(2, ge=0, le=6, description="decimals of the numbers of a Box observation")
    turns: int | None = Field(
        None, ge=1, description=f"most turns; none: the environment's own limit, at most {MOST_TURNS}"
    )
    success: float | None = Field(None, description="the lowest total reward of a correct episode")

    invalid: float = Field(-1.0, description="reward of an action that is not understood; the environment sees none")

    _words: tuple[str, ...] = PrivateAttr()
    _numbers: int = PrivateAttr()
    _limit: int = PrivateAttr()
    _own_limit: int | None = PrivateAttr()
    _threshold: Success = PrivateAttr()
    _signs: str | None = PrivateAttr()

    needs_clock: ClassVar[bool] = True
    """True: the environment comes from Gymnasium or from elsewhere."""

    def model_post_init(self, context: object) -> None:
        """Make the environment once and check its spaces.

        Raises:
            MissingExtra: if gymnasium is not installed.
            InputError: if there is no such environment, or its spaces cannot be written out.
        """
        with made_in_time(self.id):
            env = self._make()
        self._numbers = action_numbers(env.action_space)
        self._words = self._words_of(env)
        self._signs = None if is_minigrid(env) else signs(env.observation_space)
        spec = env.spec
        own = getattr(spec, "max_episode_steps", None) or MOST_TURNS
        self._limit = self.turns or min(own, MOST_TURNS)
        self._own_limit = getattr(spec, "max_episode_steps", None)
        self._threshold = Success.of(self.success, getattr(spec, "reward_threshold", None))
        closed(env, self.id)

    def _make(self) -> gymnasium.Env:
        return made(self.id, self.config, f"The task 'gym:{self.id}'")

    def _words_of(self, env: gymnasium.Env) -> tuple[str, ...]:
        """Return the words of Discrete actions; () for others, which are numbers."""
        numbers = number_words(env.action_space)
        if not numbers:
            if self.actions:
                raise InputError(f"The actions of '{self.id}' are {env.action_space}", "only Discrete ones have words")
            return ()
        name = "MiniGrid" if is_minigrid(env) else self.id.rpartition(":")[2].rpartition("-v")[0]
        known = tuple(WORDS.get(name, ()))
        words = self.actions or (known if len(known) == len(numbers) else numbers)
        if len(set(words)) != len(numbers) or len(words) != len(numbers):
            raise InputError(f"The actions {list(words)} are given for '{self.id}'", f"it has {len(numbers)} of them")
        if bad := [word for word in words if word != word.strip() or not word or "\n" in word]:
            raise InputError(f"An action of '{self.id}' is {bad[0]!r}", "a word has no spaces around it and no newline")
        return words

    @property
    def name(self) -> str:
        """The environment's name after "gym:"."""
        return f"gym:{self.id}"

    @property
    def description(self) -> str:
        """A sentence with the environment and its actions."""
        numbers = f"of {self._numbers} number{'s' * (self._numbers != 1)}"
        return f"Gymnasium's {self.id}, actions {', '.join(self._words) or numbers}."

    @property
    def max_turns(self) -> int:
        """The largest number of turns of an episode."""
        return self._limit

    @property
    def doubt(self) -> tuple[str, str]:
        """The reason why success is hard to reach with these options, and the remedy; ('', '') for none."""
        if self._threshold.stated or self._own_limit is None or self._limit >= self._own_limit:
            return "", ""
        least = self._threshold.least
        what = "a total above 0" if least is None else f"a total of at least {least:g}"
        return (
            f"'{self.name}' is cut off at {self._limit} turns, its own limit is {self._own_limit}: success is {what} "
            "in an episode that the environment itself has ended, so one that is cut off is never correct",
            f"Set task.turns to {self._own_limit}, or task.success to a total that {self._limit} turns can reach",
        )

    @property
    def max_new_tokens(self) -> int:
        """The length of the longest word, its end, and one spare token; without words, room for the numbers of an
        action.
        """
        return max(map(len, self._words), default=self._numbers * NUMBER_SIGNS) + 2

    @property
    def alphabet(self) -> str:
        """The characters of instructions, observations and actions; "" if views are described in words."""
        if self._signs is None:
            return ""
        actions = "".join(self._words) or "0123456789.-+e "
        return "".join(sorted({*self.instructions, *self._signs, *actions, *">!"}))

    def environment(self) -> GymEnvironment:
        """Return a fresh episode."""
        return GymEnvironment(
            self._make,
            self._words,
            max_turns=self._limit,
            instructions=self.instructions,
            decimals=self.decimals,
            success=self._threshold,
            invalid=self.invalid,
        )
