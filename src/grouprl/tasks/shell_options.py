"""The common parts of tasks for a shell in a runtime: their options and their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from grouprl.chat.syntaxes import AUTO, JSON, form_named
from grouprl.envs.terminal import SYSTEM, Shell
from grouprl.records.examples import Message
from grouprl.runtimes import ContainerSettings, Runtime, runtime_named
from grouprl.sandbox import SandboxSettings
from grouprl.tasks.options import POOR, BoundedTurns, OptionTask, typed_signs
from grouprl.tools.shell import ShellTools


class ShellOptions(BoundedTurns, OptionTask):
    """Options of a task whose prompts are jobs for a shell, with the columns of `grouprl.envs.Shell`."""

    turns: int = Field(3, ge=1, description="most turns; 'done' is one, too")
    tokens: int = Field(72, ge=1, description="token budget of a command, its end included")
    shown: int = Field(600, ge=40, description="characters of what a command printed that are shown")
    actions: Literal["commands", "tools"] = Field(
        "commands", description="a command a turn, or calls of the tools shell, write_file and read_file"
    )
    form: str = Field("auto", description="how calls of tools are written; see the task 'tools'")
    system: str = Field(SYSTEM, description="what a policy with a chat template is told first")
    noise: float = Field(0.3, ge=0, le=1, description=POOR)
    runtime: str = Field(
        "sandbox", description="where commands run: sandbox, docker:<image>, podman:<image> or ssh:<host>"
    )
    sandbox: SandboxSettings = Field(
        SandboxSettings(seconds=5), description="limits of a command, and the lowest level that will do"
    )

    container: ContainerSettings = Field(
        ContainerSettings(), description="the user of a container's commands, and whether its image is read-only"
    )

    @field_validator("runtime")
    @classmethod
    def _known_runtime(cls, runtime: str) -> str:
        runtime_named(runtime, SandboxSettings())
        return runtime

    @property
    def alphabet(self) -> str:
        """The characters that can be typed, and the newline."""
        return typed_signs("\r\x0b\x0c")

    @property
    def needs_clock(self) -> bool:
        """True if commands run in another place: episodes then wait in workers, at the same time."""
        return self.runtime != "sandbox"

    def episode(self, *, ascii_only: bool = True) -> Shell | ShellTools:
        """Return a fresh episode; `ascii_only` shows other characters as '?'."""
        settings: dict[str, Any] = {"seconds": self.sandbox.seconds, "shown": self.shown, "noise": self.noise}
        if self.actions == "tools":
            return ShellTools(self._runtime, self.turns, form=self.form, **settings)
        told: dict[str, Any] = {"system": self.system, "before": self.shown_first(), "ascii_only": ascii_only}
        return Shell(self._runtime, self.turns, **settings, **told)

    def shown_first(self) -> tuple[Message, ...]:
        """Return messages that a policy with a chat template is shown before the prompt."""
        return ()

    def written(self, commands: Sequence[str]) -> list[str]:
        """Return commands as actions: as they are, or as calls."""
        if self.actions == "commands":
            return list(commands)
        form = JSON if self.form == AUTO else form_named(self.form)
        return [form.write("shell", {"command": command}) for command in commands]

    def _runtime(self) -> Runtime:
        return runtime_named(self.runtime, self.sandbox, self.container)()
