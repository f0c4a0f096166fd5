"""How a task or a tool runs model-written code: limits, and the lowest level of containment that will do."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from grouprl.sandbox.level import LevelName
from grouprl.sandbox.program_outcome import Limits, ProgramOutcome
from grouprl.sandbox.shared import run


class SandboxSettings(Limits):
    """The option `sandbox` of tasks."""

    allow: LevelName = Field("landlock")
    """Lowest level of containment that will do; `rlimits` lets code read and write what the user may."""

    def run(self, code: str, *, stdin: str = "", files: Mapping[str, str | bytes] | None = None) -> ProgramOutcome:
        """Run code under these settings (`Sandbox.run`)."""
        return run(code, stdin=stdin, files=files, limits=self, allow=self.allow)
