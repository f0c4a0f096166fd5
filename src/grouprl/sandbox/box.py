"""The trainer's side of the sandbox: a fork server at some level, and runs in it."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType

import grouprl
from grouprl.core.errors import InputError, RunError, suggest
from grouprl.core.json_types import JsonObject
from grouprl.processes.child_process import call_of
from grouprl.processes.frames import LENGTH, framed, write_all
from grouprl.sandbox import fork_server
from grouprl.sandbox.folder import EPOCH, Folder, plain, rebuilt
from grouprl.sandbox.level import LEVELS, Level, LevelName
from grouprl.sandbox.program_outcome import Limits, ProgramOutcome, Why

START_SECONDS = 30.0
"""Time limit for a fork server to build its walls, in seconds."""
GRACE_SECONDS = 10.0
"""Seconds after a run's deadline in which a busy machine may still report it."""
LONGEST_CODE = 1 << 20
"""Largest number of characters of a program."""


class _Gone(Exception):
    """The fork server does not answer; the message holds its last output."""


class _Server:
    """A started fork server and the pipes to it."""

    def __init__(self, level: LevelName, packages: tuple[str, ...]) -> None:
        request, self.requests = os.pipe()
        self.replies, reply = os.pipe()
        self.said = tempfile.TemporaryFile()  # noqa: SIM115
        program = call_of(fork_server.main, f"sys.path[0] = {str(Path(grouprl.__path__[0]).parent)!r}")
        python = getattr(sys, "_base_executable", sys.executable)
        self.child = subprocess.Popen(
            [python, "-s", "-S", "-B", "-c", program, level, str(request), str(reply), *packages],
            stdin=subprocess.DEVNULL,
            stdout=self.said,
            stderr=subprocess.STDOUT,
            pass_fds=(request, reply),
            cwd="/",
            env={"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LANG": "C.UTF-8"},
        )
        os.close(request)
        os.close(reply)
        self.owner = os.getpid()
        self.end = weakref.finalize(self, _end, self.child, self.requests, self.replies)

    def send(self, payload: bytes) -> None:
        """Send a request."""
        try:
            write_all(self.requests, framed(payload))
        except BrokenPipeError as error:
            raise _Gone(self._last_words()) from error

    def hear(self, seconds: float) -> JsonObject:
        """Return the head of the next reply; raise `_Gone` if it does not arrive within `seconds`."""
        deadline = time.monotonic() + seconds
        (length,) = LENGTH.unpack(self.read(LENGTH.size, deadline))
        found: JsonObject = json.loads(self.read(length, deadline))
        return found

    def read(self, count: int, deadline: float) -> bytes:
        """Return exactly `count` bytes of a reply."""
        poll, found = select.poll(), bytearray()
        poll.register(self.replies, select.POLLIN)
        while len(found) < count:
            if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
                raise _Gone("it did not answer in time")
            piece = os.read(self.replies, min(count - len(found), 1 << 20))
            if not piece:
                raise _Gone(self._last_words())
            found += piece
        return bytes(found)

    def _last_words(self) -> str:
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a message"


class Sandbox:
    """A sandbox that runs model-written Python, one program at a time, each in a fresh, temporary folder.

    A sandbox starts in about a tenth of a second; a run then costs a few milliseconds, because programs are forks of an
    interpreter that waits behind finished walls. Usable as a context manager, and from several threads in turn.
    """

    def __init__(
        self, allow: LevelName = "landlock", *, level: LevelName | None = None, packages: bool = False
    ) -> None:
        """Build the best walls that this machine allows.

        Args:
            allow: the lowest acceptable level; on a machine without it nothing runs.
            level: use this level instead of the best one.
            packages: let programs import the packages installed here (read-only).

        Raises:
            InputError: if this machine allows no acceptable level (none does without Linux); says which were tried and
                what was refused.
        """
        for name in (allow, level or allow):
            if name not in LEVELS:
                raise InputError(f"There is no level '{name}' of the sandbox", remedy=suggest(name, LEVELS))
        if sys.platform != "linux":
            raise InputError(
                f"Model-written code cannot be contained on {sys.platform}",
                "every level of the sandbox is made of calls of Linux's kernel",
                "Use Linux, in a virtual machine if need be",
            )
        paths = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) if packages else ()
        self._packages = tuple(dict.fromkeys(paths))
        self._lock = threading.Lock()
        wanted = (level,) if level else LEVELS[: LEVELS.index(allow) + 1]
        refused: dict[LevelName, str] = {}
        for name in wanted:
            try:
                self._server, filtered = self._start(name)
            except _Gone as error:
                refused[name] = str(error)
            else:
                self.level = Level(name, filtered, refused)
                return
        raise InputError(
            "Model-written code cannot be contained on this machine: "
            + "; ".join(f"{name}: {why}" for name, why in refused.items()),
            f"the lowest acceptable level is '{allow}'",
            "Allow user namespaces or install libseccomp, or, for code that you trust, set allow to 'rlimits'.",
        )

    def run(
        self,
        code: str,
        *,
        stdin: str | bytes = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        folder: Folder | None = None,
        isolated: bool = False,
    ) -> ProgramOutcome:
        """Run code as a separate program and return its outcome; no code makes this method raise.

        Args:
            code: Python, run as `__main__` under the name main.py.
            stdin: its standard input.
            files: files in its folder, the working directory, by relative name.
            limits: limits of its time, memory, files and output.
            folder: contents of its folder that an earlier command left. The outcome's `folder` then holds everything
                that this program leaves.
            isolated: do not import modules from the folder.

        Raises:
            InputError: on file names outside the folder.
            RunError: if the fork server can no longer be started.
        """
        if len(code) > LONGEST_CODE:
            return ProgramOutcome("refused", what=f"the code has {len(code)} characters, more than {LONGEST_CODE}")
        request = {
            "code": code,
            "isolated": isolated,
            "files": {_inside(name): _bytes(content) for name, content in (files or {}).items()},
        }
        return self._have_run(request, stdin, limits or Limits(), folder, EPOCH)

    def execute(
        self,
        argv: Sequence[str],
        folder: Folder,
        *,
        stdin: str | bytes = "",
        limits: Limits | None = None,
        now: float = EPOCH,
    ) -> ProgramOutcome:
        """Run a command of the system in a folder and return its outcome; no command makes this method raise.

        All its child processes end with it. `outcome.folder` holds the contents of the folder afterwards.

        Args:
            argv: the command and its arguments; its program is searched for where Python and the system's programs are.
            folder: contents of the working folder.
            stdin: its standard input.
            limits: limits of its time, memory, files and output.
            now: modification time of the files that the command changes, in seconds.

        Raises:
            InputError: if the level of this sandbox allows no further processes, or the command is empty.
            RunError: if the fork server can no longer be started.
        """
        if self.level.name == "landlock":
            raise InputError(
                "The sandbox of this machine cannot run commands",
                "a shell starts processes, for which it needs the level 'namespaces'; here 'landlock' is the best",
                "Allow user namespaces; `grouprl sandbox` says what was refused.",
            )
        if not argv or any("\0" in word for word in argv):
            raise InputError(
                f"The command {list(argv)!r} cannot be run",
                "it needs at least one word, and no word may hold a NUL",
                "Correct it",
            )
        request = {"code": "", "argv": list(argv), "files": {}}
        return self._have_run(request, stdin, limits or Limits(), folder, now)

    def _have_run(
        self, request: JsonObject, stdin: str | bytes, limits: Limits, folder: Folder | None, now: float
    ) -> ProgramOutcome:
        request |= {"stdin": _bytes(stdin), "limits": limits.plain(), "now": now}
        request["folder"] = None if folder is None else plain(folder)
        with self._lock:
            try:
                return self._ask(request, limits)
            except _Gone as error:
                self._server.end()
                return ProgramOutcome("killed", what=f"the fork server was lost: {error}", lost=True)

    def close(self) -> None:
        """End the fork server; a further run starts it again."""
        self._server.end()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, level: LevelName) -> tuple[_Server, bool]:
        server = _Server(level, self._packages)
        try:
            head = server.hear(START_SECONDS)
            if not head["ready"]:
                raise _Gone(head["what"])
            server.send(pickle.dumps(_TRIAL))
            outcome = _outcome(server, Limits())
            if outcome.why != "ok":
                raise _Gone(f"a first run failed: {outcome.what or outcome.stderr[-200:]}")
        except _Gone:
            server.end()
            raise
        return server, bool(head["filter"])

    def _ask(self, request: dict[str, object], limits: Limits) -> ProgramOutcome:
        if self._server.owner != os.getpid() or not self._server.end.alive:  # after a fork or a loss
            try:
                self._server, _ = self._start(self.level.name)
            except _Gone as error:
                raise RunError(f"The sandbox's fork server cannot be started: {error}") from error
        self._server.send(pickle.dumps(request))
        return _outcome(self._server, limits)


def _outcome(server: _Server, limits: Limits) -> ProgramOutcome:
    head = server.hear(limits.plain()["wall"] + GRACE_SECONDS)
    if "why" in head:
        return ProgramOutcome("refused", what=head["what"])
    deadline = time.monotonic() + GRACE_SECONDS
    out, err = (server.read(length, deadline).decode(errors="replace") for length in head["lengths"])
    files = {name: server.read(length, deadline) for name, length in head["files"]}
    heads = head.get("folder")
    folder = None if heads is None else rebuilt(heads, [server.read(each[-1], deadline) for each in heads])
    why, what = _why(head, err, limits), head["what"]
    if why == "refused":
        what = (err.strip().splitlines() or ["it could not be confined"])[-1]
    return ProgramOutcome(
        why,
        out,
        err,
        stdout_cut=head["cut"][0],
        stderr_cut=head["cut"][1],
        returncode=head["returncode"],
        seconds=head["seconds"],
        waited=head["waited"],
        cpu=head["cpu"],
        files=files,
        files_cut=head["files_cut"],
        folder=folder,
        too_large=head.get("too_large", ""),
        what=what,
    )


def _why(head: JsonObject, err: str, limits: Limits) -> Why:
    code = head["returncode"]
    if not head["begun"]:  # the clock may run out before a crowded machine has started it
        return "starved" if head["stopped"] in ("timeout", "starved") else "refused"
    if head["stopped"]:
        stopped: Why = head["stopped"]
        return stopped
    if code == 0:
        return "ok"
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and head["cpu"] >= limits.plain()["cpu"]):
        return "timeout"
    if err.rstrip().rpartition("\n")[2].startswith("MemoryError"):
        return "memory"
    return "killed" if code < 0 else "error"


_TRIAL = {"code": "", "stdin": b"", "files": {}, "limits": Limits().plain()}


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise InputError(
            f"The file name {name!r} is not inside the folder",
            "it must be relative and hold no '..'",
            "Correct the name",
        )
    return str(path)


def _bytes(content: str | bytes) -> bytes:
    return content.encode(errors="surrogatepass") if isinstance(content, str) else content


def _end(child: subprocess.Popen[bytes], requests: int, replies: int) -> None:
    for pipe in (requests, replies):
        os.close(pipe)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1)
    child.kill()
    child.wait()
