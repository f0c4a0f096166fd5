"""Agent programs that are trained without changes to them."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError, MissingExtra
from grouprl.core.importing import import_object
from grouprl.core.json_types import JsonObject
from grouprl.envs.program import DemonstratedProgram, ProgramEnvironment
from grouprl.envs.program_launch import MODEL, CommandLaunch, FunctionLaunch, Launch
from grouprl.records.examples import Columns, Example, Split
from grouprl.rewards import KnownExample, Reward
from grouprl.rewards.catalogue.worker_choice import harmless
from grouprl.rewards.validation import RESERVED, verdicts_of
from grouprl.tasks.options import BoundedTurns, KnownCharacters, OptionTask
from grouprl.tasks.registry import load_task, register_task
from grouprl.tasks.table import Table
from grouprl.tasks.task import Task, without_folder

FUNCTION = re.compile(r"\S+:[A-Za-z_]\w*")


@register_task("program", argument="path")
class Program(BoundedTurns, KnownCharacters, OptionTask):
    """Train an agent program that speaks OpenAI's chat completions: program:agent.py:run, program:python agent.py.

    It runs once per episode, against an endpoint behind which the policy samples; each of its requests is a turn.
    Prompts, and the reward of what it returns or prints, are those of another task.
    """

    path: str = Field(description="file.py:function or pkg.module:function; anything else is a command line")
    examples: str | JsonObject = Field(description="the task that supplies its prompts")
    reward_path: str | None = Field(
        None, alias="reward", description="path of reward(result, **columns); none: the reward of the prompts' task"
    )
    expert: str | None = Field(
        None, description="path of expert(messages, rng, **columns), which completes requests for demonstrations"
    )
    turns: int = Field(16, ge=1, description="the largest number of requests of an episode")
    tokens: int = Field(256, ge=1, description="token budget of one completion, its end included")
    timeout: float = Field(30.0, gt=0, description="seconds within which the program sends another request or ends")
    on_crash: Literal["fail", "zero"] = Field(
        "fail", description="a program that raises counts as failed (see reward.on_error), or earns 0"
    )
    unknown_parameters: Literal["refuse", "ignore"] = Field(
        "refuse", description="what becomes of parameters of its requests that cannot be applied"
    )
    names: tuple[str, ...] = Field(
        (), alias="agents", description="names of its agents; a request names one as its `model`"
    )
    characters: str = Field("", description="the characters that requests and completions are made of, if known")
    seed: int = Field(0, description="which stream of prompts is sampled, for tasks that sample")

    _inner: Task = PrivateAttr()
    _launch: Launch = PrivateAttr()
    _judge: Callable[..., object] = PrivateAttr()
    _expert: Callable[..., str] | None = PrivateAttr()

    def model_post_init(self, context: object) -> None:
        """Load the prompts' task, the program, and its reward.

        Raises:
            MissingExtra: if a package that the endpoint needs is not installed.
            InputError: if something cannot be imported, or the task of the prompts has an environment itself.
        """
        try:
            import starlette  # noqa: F401
            import uvicorn  # noqa: F401
        except ImportError as error:
            raise MissingExtra(str(error.name), "serve", f"The task 'program:{self.path}'") from error
        if len(set(self.names)) < len(self.names) or set(self.names) & {"", MODEL, *RESERVED}:
            raise InputError(
                f"The agents of '{self.path}' are {', '.join(map(repr, self.names))}",
                f"names must differ, and none may be {', '.join(map(repr, (MODEL, *RESERVED)))}",
            )
        self._inner = load_task(self.examples, self.seed)
        if self._inner.environment() is not None:
            raise InputError(
                f"The prompts of '{self.path}' come from '{self._inner.name}', which has an environment",
                "the program is the environment here; its prompts must come from a single-turn task",
            )
        self._launch = _launch(self.path)
        self._score_result = self._inner.reward if self.reward_path is None else _imported(self.reward_path, "reward")
        self._expert = None if self.expert is None else cast(Callable[..., str], _imported(self.expert, "expert"))

    @property
    def name(self) -> str:
        """The program after "program:"."""
        return f"program:{without_folder(self.path)}"

    @property
    def description(self) -> str:
        """A sentence with the program and the task of its prompts."""
        return f"The program {self.path} on the prompts of {self._inner.name}."

    @property
    def reward(self) -> Reward:
        """The reward of the program's result."""
        return self._score_result

    def example(self, split: Split, index: int) -> Example:
        """Return the prompt of the other task."""
        return self._inner.example(split, index)

    def size(self, split: Split) -> int | None:
        """Return the size of the other task."""
        return self._inner.size(split)

    def options(self) -> JsonObject:
        """Return every option, and what the other task's prompts depend on."""
        return super().options() | {"examples_fingerprint": self._inner.fingerprint()}

    def tables(self) -> Sequence[Table]:
        """Return the tables of the other task."""
        return self._inner.tables()

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return the reward examples of the other task, if its reward is used."""
        return () if self.reward_path is not None else self._inner.reward_examples()

    @property
    def agents(self) -> tuple[str, ...]:
        """The option `names`."""
        return self.names or ("",)

    @property
    def needs_clock(self) -> bool:
        """True if the reward or the expert may never return; the program itself has its own time limit."""
        return self._expert is not None or not harmless(self._score_result)

    def environment(self) -> ProgramEnvironment:
        """Return a fresh run of the program."""
        settings: dict[str, Any] = {"timeout": self.timeout, "crash_is_failure": self.on_crash == "fail"}
        settings |= {"agents": self.agents, "ignoring": self.unknown_parameters == "ignore"}
        if self._expert is None:
            return ProgramEnvironment(self._launch, self._components, **settings)
        return DemonstratedProgram(self._expert, self._launch, self._components, **settings)

    def _components(self, result: Any, columns: Columns) -> dict[str, dict[str, float]]:
        """Return the reward of a result as components of each agent. Raises RuntimeError if the reward fails."""
        given = str(result) if self.reward_path is None else result
        verdict = verdicts_of(self._score_result, [given], [columns], ["the program's result"])[0]
        if verdict.status == "not_applicable":
            return {agent: {"correct": 0.0} for agent in self.agents}
        if verdict.status != "ok":
            raise RuntimeError(verdict.what)
        parts, correct = dict(verdict.components), float(verdict.correct)
        if self.names and set(parts) <= set(self.names) and parts:
            return {agent: {"outcome": parts.get(agent, 0.0), "correct": correct} for agent in self.names}
        named = parts if parts and math.isclose(sum(parts.values()), verdict.reward) else {"outcome": verdict.reward}
        return {agent: {**named, "correct": correct} for agent in self.agents}


def _launch(path: str) -> Launch:
    if FUNCTION.fullmatch(path):
        return FunctionLaunch(_imported(path, "program"))
    try:
        words = tuple(shlex.split(path))
    except ValueError as error:
        raise InputError(f"The program {path!r} is not a command line: {error}") from error
    if not words:
        raise InputError("The program is empty", "it must be file.py:function or a command line")
    return CommandLaunch(words)


def _imported(path: str, what: str) -> Callable[..., object]:
    found = import_object(path, what)
    if not callable(found):
        raise InputError(f"The {what} '{path}' is {type(found).__name__}", "it must be a function")
    return found
