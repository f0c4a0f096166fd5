"""Python as a tool, in the sandbox."""

from __future__ import annotations

from dataclasses import dataclass, field

from grouprl.rewards.by_task.code import COMPILED_HERE, compiles, extract_code
from grouprl.sandbox import ProgramOutcome, SandboxSettings
from grouprl.tools.definition import Options, ToolError


@dataclass(frozen=True)
class PythonTool:
    """A tool that runs Python in a sandbox with its own settings; results are remembered by code."""

    settings: SandboxSettings = field(default_factory=SandboxSettings)
    name: str = "python"

    @property
    def __name__(self) -> str:
        """The tool's name for the model."""
        return self.name

    @property
    def tool_options(self) -> Options:
        """Options of the tool: it runs in this process, because the sandbox has its own time limit."""
        return Options(self.name, pure=True, seconds=None)

    def __call__(self, code: str) -> str:
        """Run Python and return what it prints, or the value of an expression.

        Every call is a program of its own: nothing is kept from call to call.

        Args:
            code: the program, or an expression.

        Raises:
            ToolError: if the program fails; the message is the last line of what it said.
            TimeoutError: if it takes too long.
        """
        source = extract_code(code).strip()
        value = f"_ = (\n{source}\n)\nif _ is not None:\n    print(_)"
        outcome = self.settings.run(value if len(value) <= COMPILED_HERE and compiles(value) else source)
        if outcome.why in ("timeout", "starved"):  # not remembered: next time the machine may have a free processor
            raise TimeoutError(_why(outcome))
        if outcome.why != "ok":
            raise ToolError(_why(outcome))
        return outcome.stdout.strip()


python = PythonTool()
"""The tool with the default limits: `tools:grouprl.tools.python:python`."""


def _why(outcome: ProgramOutcome) -> str:
    """Return the reason why a program ended, as one line."""
    lines = outcome.stderr.strip().splitlines()
    said = lines[-1] if lines else outcome.what
    return said if outcome.why == "error" and said else f"{outcome.why}: {said}".rstrip(": ")
