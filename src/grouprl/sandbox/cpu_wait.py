"""The time that a run's processes waited for a processor: on a crowded machine the program is not to blame for it.

Linux counts it for every thread (`/proc/PID/schedstat`). If it does not, the wait is unknown and only wall-clock time
counts. A thread that has lowered its own priority (by its niceness or its policy) is to blame for its wait.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grouprl.sandbox.program_outcome import PlainLimits

AGAIN = 0.05
"""Seconds until the next look at a run that has not had its time yet."""
PARENT, CPU, NICE, POLICY = 1, slice(11, 15), 16, 38
"""Positions in `/proc/PID/stat` after the name; processor time includes the children that the process waited for."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Waited:
    """The waiting time and processor time of a run so far, in seconds."""

    seconds: float = 0.0
    """Time for which it was ready to run but had no processor."""
    cpu: float = 0.0
    """Total processor time of its processes."""


class Watch:
    """A watch over the processes of one run, starting with `first`; `processes` is the open `/proc`, or None."""

    def __init__(self, processes: int | None, first: int) -> None:
        self.processes, self.first = processes, first
        self.usual = (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))

    def all(self) -> Waited:
        """Return the processor time of all processes of the run, and the longest wait among their threads."""
        found = self._descendants()
        cpu = sum(sum(map(int, stat[CPU])) / TICKS for stat in found.values())
        waits = [self._thread(f"{pid}/task/{thread}") for pid in found for thread in self._listed(f"{pid}/task")]
        return Waited(self._thread(str(self.first)) + max(waits, default=0.0), cpu)

    def one(self, program: int) -> float:
        """Return the seconds that the first process and the program's first thread waited."""
        return self._thread(str(self.first)) + self._thread(str(program))

    def _thread(self, place: str) -> float:
        stat = self._stat(place)
        if stat is None or (int(stat[NICE]), int(stat[POLICY])) != self.usual:
            return 0.0
        counted = self._read(f"{place}/schedstat").split()
        return int(counted[1]) / 1e9 if len(counted) == 3 else 0.0

    def _descendants(self) -> dict[int, list[str]]:
        everybody = {int(name): self._stat(name) for name in self._listed(".") if name.isdigit()}
        known = {pid: stat for pid, stat in everybody.items() if stat is not None}
        found: dict[int, list[str]] = {}
        more = [self.first]
        while more:
            more = [pid for pid, stat in known.items() if int(stat[PARENT]) in more and pid not in found]
            found |= {pid: known[pid] for pid in more}
        return found

    def _stat(self, place: str) -> list[str] | None:
        fields = self._read(f"{place}/stat").rpartition(")")[2].split()
        return fields if len(fields) > POLICY else None

    def _read(self, place: str) -> str:
        try:
            source = os.open(place, os.O_RDONLY, dir_fd=self._folder())
        except OSError:
            return ""
        with open(source, errors="replace") as opened:
            try:
                return opened.read()
            except OSError:  # the process ended in the meantime
                return ""

    def _listed(self, place: str) -> list[str]:
        try:
            folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._folder())
        except OSError:
            return []
        try:
            return os.listdir(folder)
        except OSError:
            return []
        finally:
            os.close(folder)

    def _folder(self) -> int:
        if self.processes is None:
            raise FileNotFoundError("/proc")
        return self.processes


class RunClock:
    """The clock of a run: it ends after `seconds` without waits for a processor, and after `wall` in any case."""

    def __init__(self, watch: Watch, limits: PlainLimits) -> None:
        self.watch, self.seconds, self.seen = watch, limits["seconds"], Waited()
        self.began = time.monotonic()
        self.next, self.end = self.began + self.seconds, self.began + limits["wall"]
        """Time of the next check, and time at which the run is given up."""

    def over(self) -> str:
        """Return "timeout" if the run has had its time, "starved" if it cannot get it before `wall`, else "".

        A run whose processes used `seconds` of processor time in total has had its time, even if they waited: they
        compete with each other.
        """
        seen, now = self.watch.all(), time.monotonic()
        self.seen = seen
        if seen.cpu >= self.seconds or now - self.began - seen.seconds >= self.seconds:
            return "timeout"
        if now >= self.end:
            return "starved"
        self.next = min(max(self.began + self.seconds + seen.seconds, now + AGAIN), self.end)
        return ""


def open_processes() -> int | None:
    """Open `/proc` before the walls hide it, and return its descriptor; None if there is none."""
    try:
        return os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def own_number(processes: int | None) -> int:
    """Return the calling process's number in `/proc`, which differs within namespaces; 0 if it is unknown."""
    try:
        return int(os.readlink("self", dir_fd=processes)) if processes is not None else 0
    except (OSError, ValueError):
        return 0
