"""Tasks for a shell in a runtime: jobs that are made up, and folders of your own."""

from __future__ import annotations

import random
import string
from typing import Any, Literal

from pydantic import Field, field_validator

from grouprl.chat.syntaxes import AUTO, JSON, form_named
from grouprl.core.errors import suggest
from grouprl.envs.terminal import PROMPT, SYSTEM, Shell
from grouprl.records.examples import Columns, Example
from grouprl.rewards import KnownExample
from grouprl.runtimes import SandboxRuntime
from grouprl.sandbox import SandboxSettings
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.games import POOR
from grouprl.tasks.registry import register_task
from grouprl.tasks.terminal_kinds import KINDS
from grouprl.tools.shell import ShellTools

EASY = ("count", "match", "select", "permission", "column", "replace")


class ShellTask(EnvironmentTask):
    """A generated task whose prompts are jobs for a shell.

    A subclass writes `generate`, with the columns of `grouprl.envs.Shell`: `files`, `tests`, `solution`, `slips`.
    """

    turns: int = Field(3, ge=1, description="most turns; 'done' is one, too")
    tokens: int = Field(72, ge=1, description="token budget of a command, its end included")
    shown: int = Field(600, ge=40, description="characters of what a command printed that are shown")
    actions: Literal["commands", "tools"] = Field(
        "commands", description="a command a turn, or calls of the tools shell, write_file and read_file"
    )
    form: str = Field("auto", description="how calls of tools are written; see the task 'tools'")
    system: str = Field(SYSTEM, description="what a policy with a chat template is told first")
    noise: float = Field(0.3, ge=0, le=1, description=POOR)
    sandbox: SandboxSettings = Field(
        SandboxSettings(seconds=5), description="limits of a command, and the lowest level that will do"
    )

    @property
    def max_turns(self) -> int:
        """As the option says."""
        return self.turns

    @property
    def max_new_tokens(self) -> int:
        """As the option says."""
        return self.tokens

    @property
    def alphabet(self) -> str:
        """What can be typed, and the newline."""
        return "".join(char for char in string.printable if char not in "\r\x0b\x0c")

    @property
    def needs_clock(self) -> bool:
        """Whether commands may take long: then episodes wait in workers, side by side."""
        return False

    def environment(self) -> Shell | ShellTools:
        """Return a fresh episode."""
        settings: dict[str, Any] = {"seconds": self.sandbox.seconds, "shown": self.shown, "noise": self.noise}
        if self.actions == "tools":
            return ShellTools(self._runtime, self.turns, form=self.form, **settings)
        return Shell(self._runtime, self.turns, system=self.system, **settings)

    def solve(self, example: Example) -> str:
        """Return the commands, or the calls, one per line, and 'done'."""
        commands = example.columns["solution"]
        if self.actions == "tools":
            form = JSON if self.form == AUTO else form_named(self.form)
            commands = [form.write("shell", {"command": command}) for command in commands]
        return "\n".join([*commands, "done"][: self.turns])

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return the solutions of a few prompts, and having done nothing."""
        examples = [self.example("train", index) for index in range(4)]
        return tuple(
            known
            for each in examples
            for known in (
                KnownExample(self.solve(each), each.columns, True),
                KnownExample("done", each.columns, False),
                KnownExample("", each.columns, False),
            )
        )

    def _runtime(self) -> SandboxRuntime:
        return SandboxRuntime(self.sandbox)


@register_task("terminal")
class TerminalTask(ShellTask):
    """Do small jobs in a shell: count, find, rename, extract, write a script; tests look at the files that are left.

    The prompt is "Write the number of lines of plum.md to out.txt", an action one bash command,
    "wc -l < plum.md > out.txt". `done` ends the episode, as does the last turn; then the tests are run. They are never
    where the commands run.
    """

    levels = tuple(
        {"kinds": kinds, "lines": lines}
        for kinds, lines in (
            (("count",), 3),
            (("count", "match", "permission"), 4),
            (EASY, 5),
            ((*EASY, "order", "find"), 6),
            (tuple(KINDS), 8),
            (("find", "rename", "total", "script"), 12),
        )
    )

    kinds: tuple[str, ...] = Field(EASY, min_length=1, description=f"kinds of jobs: {', '.join(KINDS)}")
    lines: int = Field(5, ge=2, le=200, description="about how many lines a file has")

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"there is no kind '{kind}'. {suggest(kind, KINDS)}")
        return kinds

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a job of one of the kinds."""
        job = KINDS[rng.choice(self.kinds)](rng, self.lines)
        return f"{job.words}{PROMPT}", job.columns()
