"""Settings for the model-written code of a task or tool: limits, and the lowest acceptable level of containment."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from grouprl.sandbox.level import LevelName
from grouprl.sandbox.program_outcome import Limits, ProgramOutcome
from grouprl.sandbox.shared import run


class SandboxSettings(Limits):
    """The option `sandbox` of tasks."""

    allow: LevelName = Field("landlock")
    """Lowest acceptable level of containment; `rlimits` lets code read and write whatever the user may."""

    def run(self, code: str, *, stdin: str = "", files: Mapping[str, str | bytes] | None = None) -> ProgramOutcome:
        """Run code under these settings; see `Sandbox.run`."""
        return run(code, stdin=stdin, files=files, limits=self, allow=self.allow)
