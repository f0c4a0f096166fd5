"""The sandboxes of this process: one for each lowest acceptable level, started at its first run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

from grouprl.sandbox.box import Sandbox
from grouprl.sandbox.folder import EPOCH, Folder
from grouprl.sandbox.level import Level, LevelName
from grouprl.sandbox.program_outcome import Limits, ProgramOutcome


def run(
    code: str,
    *,
    stdin: str | bytes = "",
    files: Mapping[str, str | bytes] | None = None,
    limits: Limits | None = None,
    allow: LevelName = "landlock",
) -> ProgramOutcome:
    """Run code in this process's sandbox; see `Sandbox.run`, and `Sandbox` for what `allow` means."""
    return _shared(allow, os.getpid()).run(code, stdin=stdin, files=files, limits=limits)


def execute(
    argv: Sequence[str],
    folder: Folder,
    *,
    stdin: str | bytes = "",
    limits: Limits | None = None,
    allow: LevelName = "landlock",
    now: float = EPOCH,
) -> ProgramOutcome:
    """Run a command of the system in this process's sandbox; see `Sandbox.execute`."""
    return _shared(allow, os.getpid()).execute(argv, folder, stdin=stdin, limits=limits, now=now)


def active(allow: LevelName = "landlock") -> Level:
    """Return the level at which `run` runs on this machine.

    Raises:
        InputError: if the machine allows no acceptable level.
    """
    return _shared(allow, os.getpid()).level


@lru_cache(maxsize=8)
def _shared(allow: LevelName, process: int) -> Sandbox:
    """Return the sandbox of a process; a fork gets another one, because their requests would mix."""
    return Sandbox(allow)
