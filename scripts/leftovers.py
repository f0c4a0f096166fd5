"""Run a command and fail if it leaves a process or a file behind: `python scripts/leftovers.py make test`.

The command gets a temporary folder of its own. Whatever process outlives its parent becomes a child of this one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUBREAPER = 36
PATIENCE = 10.0
"""Seconds that processes have for ending after the command has."""
KEPT = ("pytest-of-", "pytest-cache-files-", "torchinductor_")
"""What pytest keeps of the last runs on purpose, and the cache of compiled code that importing torch makes."""


def main(command: list[str]) -> int:
    """Return the command's exit code, or 1 where it is 0 and something was left."""
    ctypes.CDLL(None).prctl(SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="left-") as folder:
        code = followed(subprocess.Popen(command, env=os.environ | {"TMPDIR": folder}).pid)
        processes = outliving()
        files = sorted(path.name for path in Path(folder).iterdir() if not path.name.startswith(KEPT))
    for what, found in (("processes", processes), ("files in the temporary folder", files)):
        if found:
            print(f"{' '.join(command)} left {len(found)} {what}:", *found[:20], sep="\n  ", file=sys.stderr)
    return code or int(bool(processes or files))


def followed(command: int) -> int:
    """Wait for the command, and collect at once whatever else ends; returns its exit code."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == command:
            return os.waitstatus_to_exitcode(status)


def outliving() -> list[str]:
    """Return the command lines of processes that do not end by themselves, and end them."""
    deadline = time.monotonic() + PATIENCE
    while (left := children()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for number in left:
        os.kill(number, signal.SIGKILL)
    return list(left.values())


def children() -> dict[int, str]:
    """Return the living children of this process by number, and collect those that have ended."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if int(parent) != os.getpid():
            continue
        if state == "Z":
            os.waitpid(int(path.name), 0)
        else:
            found[int(path.name)] = line[:200]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
