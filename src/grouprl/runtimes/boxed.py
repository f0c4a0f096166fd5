"""The sandbox as a runtime: nothing to install, a few milliseconds per command, no network."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import PurePosixPath

from grouprl.core.errors import InputError
from grouprl.runtimes.runtime import (
    LONGEST_FILE,
    OUTPUT_KB,
    SECONDS,
    CommandOutcome,
    RuntimeLost,
    Stopped,
    as_bytes,
    folder_digest,
    folder_of,
    inside,
    no_file,
    not_started,
    words_of,
)
from grouprl.sandbox import Folder, FolderEntry, ProgramOutcome, SandboxSettings, execute
from grouprl.sandbox.folder import EPOCH

SHELL = ("bash", "--noprofile", "--norc", "-c")
REMEMBERED = 1024
"""Number of commands whose outcomes are remembered: the episodes of a group often run the same ones."""
SMALL = 1 << 16
"""Largest size of output and files of an outcome that is remembered, in bytes."""
STOPPED: dict[str, Stopped] = {"timeout": "timeout", "output": "output", "memory": "memory"}
MOST_LINKS = 40

_Key = tuple[str, tuple[str, ...], bytes, float, str]
_remembered: OrderedDict[_Key, ProgramOutcome] = OrderedDict()


class SandboxRuntime:
    """A working folder in this process, and commands that run on it behind the walls of the sandbox.

    Each command receives the folder and changes it; all its processes end with it. So a snapshot costs nothing, and no
    process outlives its command. If a command leaves more than `disk_mb` or more than 1,024 names, its changes are not
    kept: the folder is as it was before, and the outcome says so. Outcomes are remembered, so equal commands in equal
    folders have equal outcomes, even if they depend on time or chance.
    """

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        """Prepare a runtime; `settings` limit each command, in addition to the arguments of `run`."""
        self.settings = settings or SandboxSettings()
        self._folder: dict[str, FolderEntry] | None = None
        self._commands = 0

    def start(self, folder: Folder | None = None) -> None:
        """Begin with a folder; see `Runtime.start`."""
        self._folder, self._commands = folder_of(folder or {}), 0

    def stop(self) -> None:
        """Forget the folder."""
        self._folder = None

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes = "",
        seconds: float = SECONDS,
        output_kb: int = OUTPUT_KB,
    ) -> CommandOutcome:
        """Run a command; see `Runtime.run`.

        Raises:
            InputError: also if this machine has no level of the sandbox at which processes can be started.
        """
        before, argv = self._held(), tuple(words_of(command, SHELL))
        update = {"seconds": seconds, "wall": None, "cpu": None, "output_kb": output_kb}
        found = self._found(before, argv, as_bytes(stdin), self.settings.model_copy(update=update))
        self._commands += 1
        if found.why in ("refused", "starved") or found.lost:
            raise RuntimeLost(f"The sandbox could not run a command ({found.why}): {found.what}")
        if found.folder is not None:
            self._folder = dict(found.folder)
        return _told(found)

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Write a file; see `Runtime.write`."""
        folder, path = self._held(), inside(path)
        for parent in map(str, list(PurePosixPath(path).parents)[:-1]):
            if folder.setdefault(parent, FolderEntry("folder", 0o755, time=self._now)).kind != "folder":
                raise InputError(f"The file {path!r} cannot be written", f"{parent!r} is not a folder")
        if path in folder and folder[path].kind == "folder":
            raise InputError(f"The file {path!r} cannot be written", "it is a folder", "Choose another path")
        folder[path] = FolderEntry("file", mode, as_bytes(content), self._now)

    def read(self, path: str, most: int = LONGEST_FILE) -> bytes:
        """Read a file; see `Runtime.read`. Links are followed inside the folder."""
        folder, where = self._held(), inside(path)
        for _ in range(MOST_LINKS):
            entry = folder.get(where)
            if entry is None or entry.kind != "link":
                break
            target = os.path.normpath(os.path.join(os.path.dirname(where), os.fsdecode(entry.content)))
            where = inside(target)
        if entry is None or entry.kind != "file":
            raise no_file(path)
        return entry.content[:most]

    def snapshot(self) -> Folder:
        """Return the working folder."""
        return dict(self._held())

    def restore(self, folder: Folder) -> None:
        """Replace the working folder."""
        self._held()
        self._folder = folder_of(folder)

    @property
    def _now(self) -> float:
        return EPOCH + 1 + self._commands

    def _held(self) -> dict[str, FolderEntry]:
        if self._folder is None:
            raise not_started()
        return self._folder

    def _found(self, folder: Folder, argv: tuple[str, ...], stdin: bytes, settings: SandboxSettings) -> ProgramOutcome:
        key = (folder_digest(folder, times=True), argv, stdin, self._now, settings.model_dump_json())
        if key in _remembered:
            _remembered.move_to_end(key)
            return _remembered[key]
        found = execute(argv, folder, stdin=stdin, limits=settings, allow=settings.allow, now=self._now)
        if found.why in ("ok", "error") and not found.lost and _size(found) <= SMALL:
            _remembered[key] = found
            if len(_remembered) > REMEMBERED:
                _remembered.popitem(last=False)
        return found


def _size(found: ProgramOutcome) -> float:
    if found.folder is None:
        return math.inf
    return len(found.stdout) + len(found.stderr) + sum(len(entry.content) for entry in found.folder.values())


def _told(found: ProgramOutcome) -> CommandOutcome:
    kept = f"its changes are not kept: {found.too_large}" if found.too_large else ""
    stopped: Stopped = ""
    if found.returncode is None:
        stopped = STOPPED.get(found.why, "killed")
    code = found.returncode if found.returncode is None or found.returncode >= 0 else None
    if found.returncode is not None and found.returncode < 0:
        stopped = "timeout" if found.why == "timeout" else "killed"
    return CommandOutcome(code, found.stdout, found.stderr, stopped, "; ".join(filter(None, (found.what, kept))))
