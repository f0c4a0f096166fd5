"""What a run may use, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pydantic
from pydantic import Field
from typing_extensions import Self, TypedDict

from grouprl.sandbox.folder import FolderEntry, Plain

Why = Literal["ok", "error", "timeout", "memory", "output", "killed", "refused", "starved"]
"""Why a run ended.

ok: exit status 0. error: another exit status, or an exception. timeout: its time used up. memory: it ended with a
MemoryError. output: it printed more than allowed. killed: by a signal, its own or another's, or because its files took
more than allowed. refused: the code was not run at all. starved: the machine gave it too little processor time
before the wall-clock limit. Code cannot cause the last two by what it does.
"""


class PlainLimits(TypedDict):
    """`Limits` in seconds and bytes."""

    seconds: float
    wall: float
    cpu: float
    memory: int
    disk: int
    output: int
    processes: int


class RunRequest(TypedDict, total=False):
    """What the fork server is to run; `code`, or the command `argv`."""

    code: str
    argv: list[str]
    isolated: bool
    files: dict[str, bytes]
    folder: list[Plain] | None
    stdin: bytes
    limits: PlainLimits
    now: float


PATIENCE = 8.0
SLACK = 1.0
"""Seconds of processor time beyond `seconds` that are allowed by default: that limit is only a safeguard."""


class Limits(pydantic.BaseModel):
    """What one run may use."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    seconds: float = Field(5.0, gt=0, le=3600)
    """Time of the program: that of a clock on the wall without what it waited for a processor, as far as the system
    counts that."""
    wall: float | None = Field(None, gt=0, le=36_000)
    """Time of the clock on the wall after which a run is given up as `starved` that has not had its `seconds`; None:
    eight times as much."""
    cpu: float | None = Field(None, gt=0, le=3600)
    """Processor time of each process, in whole seconds, rounded up; None: a second more than `seconds`, which
    end a program first that does nothing but compute."""
    memory_mb: int = Field(256, ge=64, le=1 << 20)
    """Address space of each process, in MiB; Python itself takes about 30."""
    disk_mb: int = Field(16, ge=1, le=1 << 14)
    """Size of a file, and of all files together, in MiB."""
    output_kb: int = Field(64, ge=1, le=1 << 14)
    """Standard output, and as much again of standard error, in KiB."""
    processes: int = Field(16, ge=1, le=4096)
    """Processes and threads at a time."""

    @pydantic.model_validator(mode="after")
    def _has_its_seconds(self) -> Self:
        if self.wall is not None and self.wall < self.seconds:
            raise ValueError(f"'wall' is {self.wall:g} and 'seconds' {self.seconds:g}: a run may take its seconds")
        return self

    def plain(self) -> PlainLimits:
        """Return the limits in seconds and bytes."""
        return {
            "seconds": self.seconds,
            "wall": self.wall or PATIENCE * self.seconds,
            "cpu": self.cpu or self.seconds + SLACK,
            "memory": self.memory_mb << 20,
            "disk": self.disk_mb << 20,
            "output": self.output_kb << 10,
            "processes": self.processes,
        }


@dataclass(frozen=True)
class ProgramOutcome:
    """What came of a run. All of it was under the program's control: believe nothing that it says about itself."""

    why: Why
    """Why the run ended."""
    stdout: str = ""
    """Standard output, decoded as UTF-8; invalid bytes become the replacement character."""
    stderr: str = ""
    """Standard error, decoded likewise."""
    stdout_cut: bool = False
    """Whether standard output was longer than what is kept."""
    stderr_cut: bool = False
    """Whether standard error was longer than what is kept."""
    returncode: int | None = None
    """Exit status, or minus the number of the signal that ended the program; None if it was stopped."""
    seconds: float = 0.0
    """Wall-clock time, from the program's start to the end of all its processes."""
    waited: float = 0.0
    """Seconds of that spent waiting for a busy processor, as far as the system counts them."""
    cpu: float = 0.0
    """Processor time of the program and its children."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Regular files that it created or changed in its folder, by relative name."""
    files_cut: bool = False
    """Whether files were left out, because there were too many or they could not be read."""
    folder: Mapping[str, FolderEntry] | None = None
    """The contents of its folder, if it was given one; None if they cannot be kept, for the reason in `too_large`."""
    too_large: str = ""
    """Why the folder cannot be kept, in words; else empty."""
    what: str = ""
    """What was refused, or why the program was killed, in words; else empty."""
    lost: bool = False
    """Whether the fork server ended or fell silent during the run, by the program's doing or the machine's."""
