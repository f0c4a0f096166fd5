"""Tasks with tools: the user's functions with the prompts of any task, and Python in the sandbox for a tiny model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

from pydantic import Field, PrivateAttr

from grouprl.chat.calls import Form
from grouprl.chat.syntaxes import AUTO, JSON
from grouprl.core.errors import InputError
from grouprl.core.importing import import_object
from grouprl.core.json_types import JsonObject
from grouprl.envs.environment import Observation
from grouprl.records.examples import Columns, Example, Prompt, Split
from grouprl.rewards import KnownExample, Reward, exact_match
from grouprl.rewards.catalogue.worker_choice import harmless
from grouprl.sandbox import SandboxSettings
from grouprl.tasks.environments import EnvironmentTask, EpisodeReward
from grouprl.tasks.options import BoundedTurns, KnownCharacters, OptionTask
from grouprl.tasks.registry import load_task, register_task
from grouprl.tasks.table import Table
from grouprl.tasks.task import Task, without_folder
from grouprl.tools import PythonTool, Tool, Toolbox, ToolEnvironment, form_named
from grouprl.tools.mcp import McpTool

Expert = Callable[..., str]


@register_task("tools", argument="path")
class ToolTask(BoundedTurns, KnownCharacters, OptionTask):
    """Complete the prompts of another task with your own Python functions as tools.

    It is written tools:file.py:function,another or tools:pkg.module:function, and `of` names the task whose prompts
    are used and whose reward scores the final answer. A tool is a function with types and a docstring.
    """

    path: str = Field(description="a module or file, ':', and the functions, separated by commas")
    of: str | JsonObject = Field(description="the task of the prompts: a name, or a mapping with options")
    form: str = Field(
        "auto",
        description="how calls are written: auto (as the model's chat template has them), the name of a syntax "
        "(`docs/chat_templates.md`), your own as file.py:name, or compact for tiny models",
    )
    calls: int = Field(64, ge=1, description="the largest number of calls per turn; further ones are not made")
    turns: int = Field(8, ge=1, description="the largest number of turns of an episode, including the answer's")
    tokens: int = Field(256, ge=1, description="token budget of one turn, its end included")
    traces: bool = Field(False, description="whether the model is shown the traceback of a tool that raised")
    characters: str = Field("", description="the characters that texts and actions are made of, if known")
    expert: str | None = Field(
        None, description="your function that writes demonstrations: file.py:function(prompt, results, rng, **columns)"
    )
    seed: int = Field(0, description="which stream of prompts the other task samples")

    _inner: Task = PrivateAttr()
    _toolbox: Toolbox = PrivateAttr()
    _expert: Expert | None = PrivateAttr()
    _form: Form = PrivateAttr()

    def model_post_init(self, context: object) -> None:
        """Import the tools and load the task of the prompts.

        Raises:
            InputError: if one of them cannot be found, a function cannot be a tool, or the task has an environment.
        """
        self._inner = load_task(self.of, self.seed)
        if self._inner.environment() is not None:
            raise InputError(
                f"The task '{self._inner.name}' has an environment of its own",
                "tools are added to prompts of a single turn",
            )
        self._expert = None if self.expert is None else cast(Expert, import_object(self.expert, "expert"))
        self._form = JSON if self.form == AUTO else form_named(self.form)
        self._toolbox = Toolbox(self.make_tools(), traces=self.traces, alphabet=self.characters)

    def make_tools(self) -> Sequence[Tool | Callable[..., object]]:
        """Import the tools."""
        location, _, names = self.path.rpartition(":")
        found = [import_object(f"{location}:{name.strip()}", "tool") for name in names.split(",")]
        return cast("list[Tool | Callable[..., object]]", found)

    @property
    def name(self) -> str:
        """The path after "tools:"."""
        return f"tools:{without_folder(self.path)}"

    @property
    def description(self) -> str:
        """A sentence with the task of the prompts and the tools."""
        return f"The prompts of {self._inner.name} with the tools {', '.join(self._toolbox.tools)}."

    @property
    def reward(self) -> Reward:
        """The reward of the final answer, after the actions, one per line."""
        return EpisodeReward(self)

    def example(self, split: Split, index: int) -> Example:
        """Return the prompt of the other task."""
        return self._inner.example(split, index)

    def size(self, split: Split) -> int | None:
        """Return the size of the other task."""
        return self._inner.size(split)

    def solution(self, example: Example) -> str | None:
        """Return the other task's correct answer, given without a tool call."""
        right = self._inner.solution(example)
        return None if right is None else self._form.answer(right)

    @property
    def needs_clock(self) -> bool:
        """True if the reward of the final answer, or a tool without a time limit, may never return."""
        unlimited = any(each.seconds is None and not own_clock(each) for each in self._toolbox.tools.values())
        return unlimited or self._expert is not None or not harmless(self._inner.reward)

    def environment(self) -> ToolEnvironment:
        """Return a fresh episode; the tools are shared."""
        settings = {"form": self.form, "max_turns": self.turns, "max_calls": self.calls}
        return shown_by(self._expert, self._toolbox, self._inner.reward, **settings)

    def options(self) -> JsonObject:
        """Return every option, and what the other task's prompts depend on."""
        return super().options() | {"of_fingerprint": self._inner.fingerprint()}

    def tables(self) -> Sequence[Table]:
        """Return the tables of the other task."""
        return self._inner.tables()


class ShownTools(ToolEnvironment):
    """Tools with an expert that demonstrates them: `expert(prompt, results, rng, **columns)` writes the next turn.

    `prompt` and the columns are those of the example; `results` holds the results of the calls so far
    (`grouprl.tools.Result`).
    """

    def __init__(self, expert: Expert, toolbox: Toolbox, reward: Reward, **settings: Any) -> None:
        """Prepare an episode."""
        super().__init__(toolbox, reward, **settings)
        self._expert = expert
        self._prompt: Prompt = ""

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the episode; see `ToolEnvironment.reset`."""
        self._prompt = example.prompt
        return super().reset(example, seed)

    def demonstrate(self, rng: random.Random) -> str:
        """Return the expert's next turn.

        Raises:
            InputError: if it is not a text.
        """
        given = {name: value for name, value in self.columns.items() if name not in ("prompt", "results", "rng")}
        said = self._expert(self._prompt, tuple(self.results), rng, **given)
        if not isinstance(said, str):
            raise InputError(f"The expert returned {said!r}"[:400], "a demonstrated turn is a text")
        return said


def shown_by(expert: Expert | None, toolbox: Toolbox, reward: Reward, **settings: Any) -> ToolEnvironment:
    """Return an episode with tools, which can demonstrate if there is an expert."""
    if expert is None:
        return ToolEnvironment(toolbox, reward, **settings)
    return ShownTools(expert, toolbox, reward, **settings)


class PythonEpisode(ToolEnvironment):
    """An episode of an expression such as "23*47+5?": `p(…)` runs Python, and `=1086` gives the answer.

    Columns: `answer`, and `expression` for demonstrations.
    """

    def __init__(self, toolbox: Toolbox, max_turns: int, noise: float) -> None:
        """Prepare an episode; `noise` is the chance of a slip in a demonstrated turn."""
        super().__init__(toolbox, exact_match, form="compact", max_turns=max_turns)
        self.noise = noise

    def demonstrate(self, rng: random.Random) -> str:
        """Have Python compute the value, then answer with it; with a certain chance guess, garble or miscopy."""
        slip = rng.choice(["guess", "open", "digit"]) if rng.random() < self.noise else ""
        found = next((result.text for result in reversed(self.results) if result.status == "ok"), None)
        if found is not None:
            return f"={_slipped(found, rng) if slip else found}"
        expression = str(self.columns["expression"])
        if slip == "guess":
            return f"={_slipped(expression.split('*')[0], rng)}"
        return f"p({_slipped(expression, rng) if slip == 'digit' else expression}{'' if slip == 'open' else ')'}"


@register_task("python_tool")
class PythonToolTask(EnvironmentTask):
    """Compute an expression by letting Python do it, in the sandbox.

    The prompt is "23*47+5?". "p(23*47+5)" runs it and is answered with "1086>", or "!>" if that failed; "=1086" gives
    the answer.
    """

    levels = tuple(
        {"digits": digits, "operations": operations}
        for digits, operations in ((1, 1), (2, 1), (1, 2), (2, 2), (2, 3), (3, 3))
    )

    digits: int = Field(2, ge=1, le=3, description="digits of the numbers, at most")
    operations: int = Field(2, ge=1, le=4, description="a multiplication and, after it, additions and subtractions")
    turns: int = Field(3, ge=2, description="the largest number of turns: a call, the answer, and spare ones")
    noise: float = Field(0.4, ge=0, le=1, description="chance that a demonstrated action is a poor one")
    sandbox: SandboxSettings = Field(
        SandboxSettings(seconds=2, processes=1), description="limits of a run, and the lowest acceptable level"
    )

    _toolbox: Toolbox = PrivateAttr()

    alphabet: ClassVar[str] = "0123456789*+-p()=?>!"
    """Digits and the signs of expressions, calls and answers."""

    def model_post_init(self, context: object) -> None:
        """Make the tool."""
        self._toolbox = Toolbox([PythonTool(self.sandbox, "p")], longest=6 * self.digits, alphabet=self.alphabet)

    @property
    def max_turns(self) -> int:
        """The option `turns`."""
        return self.turns

    @property
    def max_new_tokens(self) -> int:
        """The length of the call of the longest expression, its end, and two spare tokens."""
        return (self.digits + 1) * (self.operations + 1) + 5

    def environment(self) -> PythonEpisode:
        """Return a fresh episode; results of Python are remembered across episodes."""
        return PythonEpisode(self._toolbox, self.turns, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return an expression whose value is not negative."""
        signs = ["*", *rng.choices("+-", k=self.operations - 1)]
        while True:
            terms = [rng.randint(2, 10**self.digits - 1) for _ in range(self.operations + 1)]
            value = terms[0] * terms[1] + sum(
                term if sign == "+" else -term for sign, term in zip(signs[1:], terms[2:], strict=True)
            )
            if value >= 0:
                break
        expression = str(terms[0]) + "".join(f"{sign}{term}" for sign, term in zip(signs, terms[1:], strict=True))
        return f"{expression}?", {"expression": expression, "answer": str(value)}

    def solve(self, example: Example) -> str:
        """Return the answer, without Python."""
        return f"={example.columns['answer']}"

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return episodes with and without Python, right and wrong."""
        columns: Columns = {"expression": "3*4", "answer": "12"}
        return (
            KnownExample("p(3*4)\n=12", columns, True),
            KnownExample("=12", columns, True),
            KnownExample("p(3*4)\n=13", columns, False),
            KnownExample("p(3*4)", columns, False),
        )


def own_clock(tool: Tool) -> bool:
    """Return whether a tool ends by itself: the sandbox and MCP servers have time limits."""
    return isinstance(tool, McpTool) or isinstance(tool.function, PythonTool)


def _slipped(text: str, rng: random.Random) -> str:
    """Return the text with its last digit replaced by a random one."""
    return text[:-1] + str(rng.randrange(10))
