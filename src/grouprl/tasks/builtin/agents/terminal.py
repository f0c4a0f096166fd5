"""Tasks for a shell in a runtime, with generated jobs."""

from __future__ import annotations

import random
from typing import Self

from pydantic import Field, field_validator, model_validator

from grouprl.core.errors import suggest
from grouprl.envs.terminal import PROMPT, Shell, solved_task
from grouprl.records.examples import Example, Message
from grouprl.rewards import KnownExample
from grouprl.tasks.builtin.agents.terminal_kinds import KINDS, WHOLE_FOLDER, Job, joined, touched
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.registry import register_task
from grouprl.tasks.shell_options import ShellOptions
from grouprl.tools.shell import ShellTools

EASY = ("count", "match", "select", "permission", "column", "replace")


class ShellTask(ShellOptions, EnvironmentTask):
    """A generated task whose prompts are jobs for a shell.

    A subclass writes `generate`, with the columns of `grouprl.envs.Shell`: `files`, `tests`, `solution`, `slips`.
    """

    def environment(self) -> Shell | ShellTools:
        """Return a fresh episode."""
        return self.episode()

    def solve(self, example: Example) -> str:
        """Return the commands, or the calls, one per line, and 'done'."""
        return "\n".join([*self.written(example.columns["solution"]), "done"][: self.turns])

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return the solutions of a few prompts, and completions that do nothing."""
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


@register_task("terminal")
class TerminalTask(ShellTask):
    """Do small jobs in a shell: count, find, rename, extract, write a script; tests check the resulting files.

    The prompt is "Write the number of lines of plum.md to out.txt", and an action is one bash command, "wc -l <
    plum.md > out.txt". `done` ends the episode, as does the last turn; then the tests are run. They are never stored
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
    lines: int = Field(5, ge=2, le=200, description="approximate number of lines of a file")
    jobs: int = Field(1, ge=1, le=4, description="jobs of a prompt, to be done one after the other, a command each")
    solved: int = Field(
        0, ge=0, le=16, description="solved jobs that a policy with a chat template is shown first; not with tools"
    )

    @model_validator(mode="after")
    def _solved_with_commands(self) -> Self:
        if self.solved and self.actions == "tools":
            raise ValueError(
                f"solved is {self.solved} and actions is tools. Solved jobs are shown as commands. Set solved: 0"
            )
        return self

    @model_validator(mode="after")
    def _jobs_beside_others(self) -> Self:
        alone = [kind for kind in self.kinds if kind in WHOLE_FOLDER]
        if self.jobs > 1 and alone:
            raise ValueError(
                f"jobs is {self.jobs} and kinds has {', '.join(alone)}, whose tests look at the whole folder. "
                "Leave these kinds out, or set jobs: 1"
            )
        if self.jobs >= self.turns > 1:
            raise ValueError(f"jobs is {self.jobs} and turns is {self.turns}. Set turns: {self.jobs + 1}, for 'done'")
        return self

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"there is no kind '{kind}'. {suggest(kind, KINDS)}")
        return kinds

    def shown_first(self) -> tuple[Message, ...]:
        """Return solved jobs as messages, sampled independently of the prompts, taking the kinds in turn."""
        jobs = [
            self._made(self.kinds[number % len(self.kinds)], random.Random(f"solved {number}"))
            for number in range(self.solved)
        ]
        return tuple(message for job in jobs for message in solved_task(job.words, job.columns()["solution"]))

    def generate(self, rng: random.Random) -> tuple[str, dict[str, object]]:
        """Return a job of one of the kinds, or several jobs that touch different files."""
        job = self._made(rng.choice(self.kinds), rng)
        return f"{job.words}{PROMPT}", job.columns()

    def _made(self, kind: str, rng: random.Random) -> Job:
        """Return a job of a kind, followed by as many others as `jobs` says."""
        found = [KINDS[kind](rng, self.lines)]
        while len(found) < self.jobs:
            other = KINDS[rng.choice(self.kinds)](rng, self.lines)
            if not any(touched(other) & touched(job) for job in found):
                found.append(other)
        return joined(found)
