"""A shell, and reading and writing files, as tools; tests inspect the folder after the final answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from grouprl.core.errors import InputError
from grouprl.envs.environment import Observation, Step
from grouprl.envs.terminal import BOTH, DONE, PROMPT, given_folder, shown_of
from grouprl.runtimes.checks import passed, read_checks
from grouprl.runtimes.runtime import FolderUnreadable, Runtime
from grouprl.tools.definition import Options, ToolError
from grouprl.tools.environment import ToolEnvironment
from grouprl.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from grouprl.records.examples import Example


Method = TypeVar("Method", bound=Callable[..., str])


def _runs_here(method: Method) -> Method:
    """Let a tool run in this process, because its runtime has its own time limit."""
    method.__dict__["tool_options"] = Options(seconds=None)
    return method


class ShellTools(ToolEnvironment):
    """The task of a `grouprl.envs.Shell`, solved with the tools shell, write_file and read_file.

    It has the same columns. A turn without a call ends the episode, as does the last turn; then the tests run, and the
    reward is 1 if all pass. The text of the answer does not count.
    """

    def __init__(
        self,
        make: Callable[[], Runtime],
        max_turns: int,
        *,
        form: str = "auto",
        seconds: float = 10.0,
        shown: int = 600,
        noise: float = 0.3,
    ) -> None:
        """Prepare an episode; see `grouprl.envs.Shell` for the arguments, and `ToolEnvironment` for `form`."""
        self.make, self.seconds, self.shown, self.noise = make, seconds, shown, noise
        self.runtime: Runtime | None = None
        self.followed = 0
        toolbox = Toolbox([self.shell, self.write_file, self.read_file], longest=2 * shown)
        super().__init__(toolbox, _unused, form=form, max_turns=max_turns, on_close=self._stop)

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the episode: put the files into a fresh runtime."""
        first = super().reset(example, seed)
        self.checks = read_checks(self.columns["tests"])
        self.runtime = self.make()
        self.runtime.start(given_folder(self.columns["files"]))
        messages = tuple({**each, "content": str(each["content"]).removesuffix(PROMPT)} for each in first.messages)
        return Observation(first.text, first.state, messages=messages, tools=first.tools)

    def step(self, action: str) -> Step:
        """Call tools; after an answer or the last turn, run the tests."""
        step = super().step(action)
        if not step.truncated:
            return step
        reward, self.correct = self._judge("")
        return Step(step.observation, reward, truncated=True, valid=step.valid)

    def demonstrate(self, rng: random.Random) -> str:
        """Return a call with the next command of the solution, at random with a mistake in it."""
        solution, slips = self.columns.get("solution", ()), self.columns.get("slips", ())
        if slips and rng.random() < self.noise:
            return self.form.write("shell", {"command": rng.choice(slips)})
        if self.followed < len(solution):
            return self.form.write("shell", {"command": solution[self.followed]})
        return self.form.answer(DONE[0])

    @_runs_here
    def shell(self, command: str) -> str:
        """Run a bash command in the working folder and return what it prints.

        Args:
            command: the command.
        """
        if not command.strip() or "\0" in command:
            raise ToolError("there is no command")
        solution = self.columns.get("solution", ())
        self.followed += self.followed < len(solution) and command == solution[self.followed]
        found = self._running.run([*BOTH, command], seconds=self.seconds)
        return shown_of(found, self.shown) or "(no output)"

    @_runs_here
    def write_file(self, path: str, content: str) -> str:
        """Write a file.

        Args:
            path: where, relative to the working folder.
            content: all that it is to hold.
        """
        try:
            self._running.write(path, content)
        except InputError as error:
            raise ToolError(error.what) from None
        return "written"

    @_runs_here
    def read_file(self, path: str) -> str:
        """Return what a file holds.

        Args:
            path: where it is, relative to the working folder.
        """
        try:
            content = self._running.read(path)
        except InputError as error:
            raise ToolError(error.what) from None
        return content.decode(errors="replace")[: self.shown]

    @property
    def _running(self) -> Runtime:
        if self.runtime is None:
            raise InputError(
                "The episode is over", "tools may be called only between reset and the end", "Start a new episode"
            )
        return self.runtime

    def _judge(self, answer: str) -> tuple[float, bool]:
        try:
            folder = self._running.snapshot()
        except FolderUnreadable:
            return 0.0, False
        self._stop()
        right = all(passed(self.checks, folder, self.make))
        return float(right), right

    def _stop(self) -> None:
        if self.runtime is not None:
            self.runtime.stop()
            self.runtime = None


def _unused(completion: str, **columns: Mapping[str, object]) -> float:
    raise AssertionError("the tests are the verdict")
