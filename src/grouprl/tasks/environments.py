"""Tasks whose episodes are played in an environment."""

from __future__ import annotations

import inspect
import itertools
import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError, raised
from grouprl.core.hashing import generator
from grouprl.core.importing import import_object
from grouprl.core.json_types import JsonObject
from grouprl.core.timeout import MAKING, TooLong, alarm
from grouprl.envs import Demonstrator, Environment, Observation, Step
from grouprl.envs.async_methods import awaited, close
from grouprl.envs.playing import demonstrated_actions, total_reward
from grouprl.protocols import Spaces
from grouprl.records.examples import Example, Split
from grouprl.rewards import KnownExample, Reward
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.options import BoundedTurns, KnownCharacters, OptionTask
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import Task, check_request, split_of, without_folder

PATIENCE = 10.0
"""Seconds that a foreign environment may take to return the first observation of a prompt."""
METHODS = ("reset", "step", "score", "close")


@dataclass(frozen=True)
class EpisodeReward:
    """The sum of the rewards of an episode whose actions are given, one per line; its chance events have seed 0."""

    task: Task

    def __call__(self, completion: str, **columns: object) -> float:
        """Play the actions in a fresh environment."""
        example = Example("played", "", columns)
        total = total_reward(self.task.environment(), example, completion.splitlines())
        return round(total, 9)  # shares that should add up to 1 do so only up to rounding


class EnvironmentTask(GeneratedTask):
    """A generated task whose prompts are the beginnings of episodes.

    A subclass writes `generate` (the first observation, and the columns that its environment begins from), `solve`,
    `environment` and `max_turns`. As text, an episode is its actions, one per line: this is the form that
    `demonstration` and `solution` return and `reward` scores.
    """

    @property
    def reward(self) -> Reward:
        """The sum of the rewards for the actions, one per line."""
        return EpisodeReward(self)

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Return the actions of an episode that the environment demonstrates."""
        return "\n".join(demonstrated_actions(self.environment, example, rng, self.max_turns) or ())

    def hints(self, example: Example) -> tuple[str, ...]:
        """Return nothing: a helpful hint would depend on the turn."""
        return ()


class _SharedLuck:
    """An environment that uses the prompt's seed for its chance events, whatever seed it is given."""

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self.step: Callable[[str], Step] = inner.step
        self.score: Callable[[], dict[str, float]] = inner.score
        if callable(scores := getattr(inner, "scores", None)):
            self.scores: Callable[[], dict[str, dict[str, float]]] = scores
        self.close: Callable[[], None] = inner.close

    def reset(self, example: Example, seed: int) -> Observation:
        return self._inner.reset(example, example.columns["seed"])


class _SharedLuckShown(_SharedLuck):
    """The same wrapper for an environment that can demonstrate."""

    def __init__(self, inner: Demonstrator) -> None:
        super().__init__(inner)  # type: ignore[arg-type]
        self.demonstrate: Callable[[random.Random], str] = inner.demonstrate


class _Settled:
    """An environment that is made when its prompt is known, with the arguments that the prompt has."""

    def __init__(self, make: Callable[[JsonObject], Environment], first: JsonObject) -> None:
        self._make, self._names = make, tuple(first)
        self._inner = make(first)

    def reset(self, example: Example, seed: int) -> Observation:
        close(self._inner)
        self._inner = self._make({name: example.columns[name] for name in self._names})
        return self._inner.reset(example, seed)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class SeededTask(OptionTask):
    """An endless task whose prompts are seeds: column `seed` determines how an episode begins.

    The splits have different seeds. A subclass writes `environment` and `max_turns`.
    """

    seed: int = Field(0, description="which stream of seeds is sampled")

    def example(self, split: Split, index: int) -> Example:
        """Return prompt `index` (any number from 0) of a split; its prompt is the first observation.

        Raises:
            InputError: on an unknown split or a negative index.
        """
        check_request(self.name, split, index, None)
        rng = generator(self.seed, self.name, split, index)
        seed_now = next(seed for seed in iter(lambda: rng.randrange(2**31), None) if split_of(str(seed)) == split)
        bare = Example(f"{self.name}/{split}/{index}", "", {"seed": seed_now, **self.setting(index)})
        return Example(bare.id, self.first_text(bare), bare.columns)

    def setting(self, index: int) -> JsonObject:
        """Return what else distinguishes prompt `index`, as columns."""
        return {}

    def first_text(self, example: Example) -> str:
        """Return the first observation for a reader; '' if foreign code fails or hangs.

        Its episodes then fail when they are played, which is counted and does not stop a run. It may take `PATIENCE`
        seconds, and is called in a separate process, which it may end, if the task can be sent to one.
        """
        if not self.needs_clock:
            return self._begin(example)
        from grouprl.tasks.beginnings import Beginnings

        if (apart := Beginnings.of(self, PATIENCE)) is not None:
            return apart.text(example)
        found: list[str] = []

        def look() -> None:
            with suppress(Exception):
                found.append(self._begin(example))

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        looking.join(PATIENCE)
        return found[0] if found else ""

    def _begin(self, example: Example) -> str:
        environment = self.environment()
        try:
            return str(awaited(environment.reset(example, example.columns["seed"])).text)
        finally:
            close(environment)

    def size(self, split: Split) -> None:
        """Return None: both splits are endless."""
        check_request(self.name, split, 0, None)

    @property
    def reward(self) -> Reward:
        """The sum of the rewards for the actions, one per line."""
        return EpisodeReward(self)

    def demonstration(self, example: Example, seed: int) -> str | None:
        """Return the actions of an episode that the environment demonstrates, one per line; None if it cannot."""
        rng = generator(seed, "demonstration", example.id)
        actions = demonstrated_actions(self.environment, example, rng, self.max_turns)
        return None if actions is None else "\n".join(actions)

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return nothing, because no right actions are known."""
        return ()


def not_whole(make: Callable[..., object], arguments: JsonObject) -> str:
    """Return the first argument that is not a whole number though the signature asks for one ('int'); '' without one.

    A side of 2.5 cells would only fail later: as weights of the policy, or in an episode.
    """
    try:
        asked = inspect.signature(make).parameters
    except ValueError:  # what is not written in Python may have none
        return ""
    whole = [name for name in arguments if name in asked and asked[name].annotation in (int, "int")]
    return next((name for name in whole if type(arguments[name]) is not int), "")


@register_task("env", argument="path")
class OwnEnvironment(BoundedTurns, KnownCharacters, SeededTask):
    """Act in your own environment, a class with reset, step, score and close.

    It is written env:pkg.module:Class or env:path/to/file.py:Class. Example number i has its own seed in the column
    `seed`. With `own_luck` every completion gets its own seed for chance events after the beginning; without it, all
    completions of a prompt use the prompt's seed, so that they begin alike. An environment that tells its policy one of
    several strategies says how many in `strategies`: it reads which one from the column `told`, if there is any.
    """

    path: str = Field(description="import path of the class, or of a function that returns an environment")
    config: JsonObject = Field(default_factory=dict, description="arguments that it is called with")
    turns: int = Field(16, ge=1, description="the largest number of turns of an episode")
    tokens: int = Field(16, ge=1, description="token budget of one turn, its end included")
    characters: str = Field("", description="the characters that texts and actions are made of, if known")
    horizon: int | None = Field(
        None,
        ge=1,
        description="of environments of arrays: actions that each takes per step of training, before its episode goes "
        "on in the next step. None: every episode is played to its end",
    )
    own_luck: bool = Field(False, description="whether every completion of a prompt has its own seed")
    grid: dict[str, list[object]] = Field(
        default_factory=dict,
        description="arguments of which each has several values: prompt 0 has the first of each, the next prompts the "
        "other combinations in turn; so many data.prompts are one of each",
    )

    _make: Callable[..., Environment] = PrivateAttr()
    _spaces: Spaces | None = PrivateAttr()
    _strategies: int = PrivateAttr(default=1)

    def model_post_init(self, context: object) -> None:
        """Import the class and make one environment.

        Raises:
            InputError: if it cannot be imported or made, or is not an environment.
        """
        make = import_object(self.path, "custom environment")
        if not callable(make):
            raise InputError(
                f"'{self.path}' is not an environment", "it must be a class, or a function that returns one"
            )
        self._make = cast("Callable[..., Environment]", make)
        if empty := [name for name, values in self.grid.items() if not values or name == "seed"]:
            raise InputError(
                f"task.grid has {empty[0]}: {self.grid[empty[0]]}", "it must list the values of an argument"
            )
        try:
            with self._named("cannot be made", "its constructor must not raise"), alarm(MAKING):
                environment = self._build(self.setting(0))
        except TooLong:
            rule = f"its constructor must return within {MAKING:g} seconds, because every episode makes one"
            raise InputError(
                f"The environment '{self.path}' was not made in time", rule, "Load large data once, with the module"
            ) from None
        if missing := [name for name in METHODS if not callable(getattr(environment, name, None))]:
            raise InputError(f"'{self.path}' lacks {', '.join(missing)}", f"an environment has {', '.join(METHODS)}")
        self._spaces = getattr(environment, "spaces", None)
        self._strategies = int(getattr(environment, "strategies", 1))
        if not isinstance(self._spaces, Spaces | None):
            raise InputError(f"'{self.path}' has the spaces {self._spaces!r}", "they must be grouprl.protocols.Spaces")
        if self.horizon is not None and self._spaces is None:
            raise InputError(
                f"task.horizon = {self.horizon} for '{self.path}'",
                "only environments of arrays continue from step to step",
                "Leave it out, or give the class spaces (grouprl.protocols.Spaces)",
            )
        with self._named("cannot be closed", "close() must not raise"):
            close(environment)
        self._check_alike()

    def _check_alike(self) -> None:
        for index in range(1, self.settings):
            with self._named("cannot be made", "each combination of task.grid makes an environment"):
                other = self._build(self.setting(index))
            if getattr(other, "spaces", None) != self._spaces:
                raise InputError(
                    f"'{self.path}' with {self.setting(index)} has other spaces",
                    "one policy acts in every combination of task.grid",
                    "Keep arguments that change the spaces in task.config",
                )
            close(other)

    @contextmanager
    def _named(self, what: str, rule: str) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(f"The environment '{self.path}' {what}: {raised(error)}", rule) from error

    def _build(self, setting: JsonObject) -> Environment:
        arguments = {**self.config, **setting}
        if other := not_whole(self._make, arguments):
            raise InputError(
                f"The environment '{self.path}' cannot be made with {arguments}",
                f"its signature says that {other} is a whole number",
                f"Set task.config.{other} to one, or in task.grid each of its values",
            )
        try:
            return self._make(**arguments)
        except TypeError as error:
            raise InputError(
                f"The environment '{self.path}' cannot be made with {arguments}", str(error), "See task.config."
            ) from error

    @property
    def settings(self) -> int:
        """The number of combinations of `grid`; 1 without one."""
        return math.prod(len(values) for values in self.grid.values())

    @property
    def cases(self) -> int:
        """The number of combinations of `grid`."""
        return self.settings

    def setting(self, index: int) -> JsonObject:
        """Return the arguments by which prompt `index` differs, in columns of their names."""
        chosen = next(itertools.islice(itertools.product(*self.grid.values()), index % self.settings, None))
        return dict(zip(self.grid, chosen, strict=True))

    @property
    def name(self) -> str:
        """The import path after "env:"."""
        return f"env:{without_folder(self.path)}"

    @property
    def description(self) -> str:
        """The first line of the environment's docstring."""
        return (self._make.__doc__ or f"The environment {self.path}.").strip().splitlines()[0]

    @property
    def agents(self) -> tuple[str, ...]:
        """The class attribute `agents`, if the class has one."""
        return tuple(getattr(self._make, "agents", ("",)))

    @property
    def spaces(self) -> Spaces | None:
        """The class attribute `spaces`, if the environment acts on arrays."""
        return self._spaces

    def variants(self, example: Example) -> tuple[Example, ...]:
        """Return the prompt once for each strategy of the environment, whose number is the column `told`."""
        if self._strategies == 1:
            return (example,)
        return tuple(
            Example(f"{example.id}/{number}", example.prompt, {**example.columns, "told": number})
            for number in range(self._strategies)
        )

    @property
    def started_gb(self) -> float:
        """The class attribute `started_gb`, if the class has one."""
        return float(getattr(self._make, "started_gb", 0.0))

    @property
    def max_new_tokens(self) -> int:
        """The option `tokens`; for an environment of arrays, the largest number of actions per turn."""
        return self.tokens if self._spaces is None else self._spaces.chain

    @property
    def actions_per_step(self) -> int | None:
        """The option `horizon`."""
        return self.horizon

    def first_text(self, example: Example) -> str:
        """Return the first observation as a reader sees it; of an environment of arrays, its seed."""
        return super().first_text(example) if self._spaces is None else f"seed {example.columns['seed']}"

    @property
    def needs_clock(self) -> bool:
        """True if the class is from outside this package."""
        return not str(getattr(self._make, "__module__", "")).startswith("grouprl.")

    def environment(self) -> Any:
        """Return a fresh environment."""
        return _Settled(self._fresh, self.setting(0)) if self.grid else self._fresh({})

    def _fresh(self, setting: JsonObject) -> Environment:
        environment = self._build(setting)
        if self.own_luck:
            return environment
        shared = _SharedLuckShown(environment) if isinstance(environment, Demonstrator) else _SharedLuck(environment)
        return cast("Environment", shared)
