"""The limits of a run, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

import pydantic
from pydantic import Field
from typing_extensions import TypedDict

from grouprl.sandbox.folder import FolderEntry, Plain

Why = Literal["ok", "error", "timeout", "memory", "output", "killed", "refused", "starved"]
"""The reason why a run ended.

ok: exit status 0. error: another exit status, or an exception. timeout: its time was used up. memory: it ended with a
MemoryError. output: it printed more than allowed. killed: by its own or another's signal, or because its files took
more than allowed. refused: the code was never run. starved: the machine gave it too little processor time before the
wall-clock limit, or did not start it in time. Code cannot cause the last two by its actions.
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
    """A request to the fork server to run `code`, or the command `argv`."""

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
"""Seconds of processor time that are allowed beyond `seconds` by default: that limit is only a safeguard."""


class Limits(pydantic.BaseModel):
    """The limits of one run."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    seconds: float = Field(5.0, gt=0, le=3600)
    """Time limit of the program: wall-clock time without the time it waited for a processor, as far as the system
    counts that."""
    wall: float | None = Field(None, gt=0, le=36_000)
    """Wall-clock time after which a run that has not had its `seconds` is given up as `starved`; None for eight times
    `seconds`."""
    cpu: float | None = Field(None, gt=0, le=3600)
    """Processor time of each process, in seconds, rounded up; None for one second more than `seconds`, so that
    `seconds` first ends a program that only computes."""
    memory_mb: int = Field(256, ge=64, le=1 << 20)
    """Address space of each process, in MiB; Python itself takes about 30 MiB."""
    disk_mb: int = Field(16, ge=1, le=1 << 14)
    """Largest size of a single file, and of all files together, in MiB."""
    output_kb: int = Field(64, ge=1, le=1 << 14)
    """Largest size of standard output, and separately of standard error, in KiB."""
    processes: int = Field(16, ge=1, le=4096)
    """Largest number of processes and threads at a time."""

    @pydantic.model_validator(mode="after")
    def _has_its_seconds(self) -> Self:
        if self.wall is not None and self.wall < self.seconds:
            raise ValueError(f"'wall' is {self.wall:g} and 'seconds' is {self.seconds:g}; it must be at least that")
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
    """The outcome of a run. The program controlled its output and files: trust nothing that it says about itself."""

    why: Why
    """The reason why the run ended."""
    stdout: str = ""
    """Standard output, decoded as UTF-8; invalid bytes become the replacement character."""
    stderr: str = ""
    """Standard error, decoded in the same way."""
    stdout_cut: bool = False
    """Whether standard output was truncated."""
    stderr_cut: bool = False
    """Whether standard error was truncated."""
    returncode: int | None = None
    """Exit status, or minus the number of the signal that ended the program; None if it was stopped."""
    seconds: float = 0.0
    """Wall-clock time, from the program's start to the end of all its processes."""
    waited: float = 0.0
    """Seconds of that spent waiting for a busy processor, as far as the system counts them."""
    cpu: float = 0.0
    """Processor time of the program and its children."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Regular files that the program created or changed in its folder, by relative name."""
    files_cut: bool = False
    """Whether files were left out because they were too many or unreadable."""
    folder: Mapping[str, FolderEntry] | None = None
    """The contents of the folder that the program was given, if any; None if they cannot be kept (see `too_large`)."""
    too_large: str = ""
    """The reason why the folder cannot be kept; else empty."""
    what: str = ""
    """The reason why the run was refused or the program killed; else empty."""
    lost: bool = False
    """Whether the fork server ended or stopped answering during the run, because of the program or the machine."""
