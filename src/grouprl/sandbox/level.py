"""The levels of containment in order, and descriptions of what each of them contains and lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

LevelName = Literal["namespaces", "landlock", "rlimits"]
LEVELS: tuple[LevelName, ...] = get_args(LevelName)
"""The levels, best first."""

_LIMITS = (
    "wall-clock and processor time, memory, file size and open files of a process, output",
    "environment variables and open files of the process that asks for the run",
)
CONTAINS: Mapping[LevelName, tuple[str, ...]] = {
    "namespaces": (
        "files: it sees Python, the system's programs and libraries, and its own folder in memory, of limited size",
        "network: it has none, not even to this machine",
        "processes: it sees only its own, a limited number, and all end with it",
        *_LIMITS,
    ),
    "landlock": (
        "files: it reads Python and the system's programs and libraries, and writes to its own folder only",
        "network: it can open no socket",
        "processes: it can start none, and send no signal to others",
        *_LIMITS,
    ),
    "rlimits": _LIMITS,
}
LACKS: Mapping[LevelName, tuple[str, ...]] = {
    "namespaces": (),
    "landlock": (
        "names, sizes and times of other files can be queried one by one (not their contents, not lists)",
        "the size of all files together, on the disk that holds temporary folders",
    ),
    "rlimits": (
        "files: it reads and writes whatever the user may",
        "network: it has the user's",
        "processes: it can signal those of the user, look into them, and leave some behind",
        "the size of all files together, the number of processes of root",
    ),
}
_ALWAYS = (
    "memory is limited for each process, not for all of them together",
    "processor caches and load: it competes with everything else on the machine",
    "holes in the kernel, which is shared with the machine: this is not a virtual machine",
)
_UNFILTERED = "system calls are not filtered, as libseccomp is not installed: obscure parts of the kernel, and vsock"


@dataclass(frozen=True)
class Level:
    """A level of containment that works on this machine."""

    name: LevelName
    filtered: bool = True
    """Whether system calls are filtered."""
    refused: Mapping[LevelName, str] = field(default_factory=dict)
    """Reasons why this machine does not allow the better levels, by level."""

    @property
    def contains(self) -> tuple[str, ...]:
        """Descriptions of what is contained."""
        return CONTAINS[self.name]

    @property
    def lacks(self) -> tuple[str, ...]:
        """Descriptions of what is not contained."""
        unfiltered = () if self.filtered or self.name == "rlimits" else (_UNFILTERED,)
        return (*LACKS[self.name], *unfiltered, *_ALWAYS)

    def reaches(self, wanted: LevelName) -> bool:
        """Return whether this level is at least as good as `wanted`."""
        return LEVELS.index(self.name) <= LEVELS.index(wanted)
