"""Python as a tool, in the sandbox."""

from __future__ import annotations

from dataclasses import dataclass, field

from grouprl.rewards.by_task.code import COMPILED_HERE, compiles, extract_code
from grouprl.sandbox import ProgramOutcome, SandboxSettings
from grouprl.tools.definition import Options, ToolError


@dataclass(frozen=True)
class PythonTool:
    """Python under settings of its own; equal code gives equal results, which are remembered."""

    settings: SandboxSettings = field(default_factory=SandboxSettings)
    name: str = "python"

    @property
    def __name__(self) -> str:
        """The tool's name for the model."""
        return self.name

    @property
    def tool_options(self) -> Options:
        """It runs in this process, as the sandbox has a time limit of its own."""
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
        if outcome.why in ("timeout", "starved"):  # another time the machine may have a processor for it
            raise TimeoutError(_why(outcome))
        if outcome.why != "ok":
            raise ToolError(_why(outcome))
        return outcome.stdout.strip()


python = PythonTool()
"""The tool under the usual limits: `tools:grouprl.tools.python:python`."""


def _why(outcome: ProgramOutcome) -> str:
    """Return what ended a program, in a line."""
    lines = outcome.stderr.strip().splitlines()
    said = lines[-1] if lines else outcome.what
    return said if outcome.why == "error" and said else f"{outcome.why}: {said}".rstrip(": ")
