"""Runtimes behind a program of the command line: containers by docker or podman, other machines by ssh."""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import tarfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grouprl.core.errors import InputError
from grouprl.runtimes.runtime import (
    LONGEST_FILE,
    OUTPUT_KB,
    SECONDS,
    CommandOutcome,
    RuntimeLost,
    Stopped,
    as_bytes,
    folder_of,
    inside,
    words_of,
)
from grouprl.sandbox import Folder, FolderEntry

SHELL = ("sh", "-c")
FOLDER = "/work"
"""The working folder in a container."""
OWN_SECONDS = 120.0
"""How long a client may take for what it does itself: start a container, write a file, pack a folder."""
MOST_KB = 64 << 10
"""KiB of a packed folder."""
GRACE = 5.0
"""Seconds that a client has beyond those of a command, which is stopped at its place first."""
LATE = (124, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""Exit status of `timeout` for what it stopped: coreutils', busybox's, and where that took a kill."""


class ClientRuntime(ABC):
    """What such runtimes share: commands, files and folders all go through one client and its streams."""

    def __init__(self) -> None:
        """Prepare; nothing is started yet."""
        self._place = ""

    @abstractmethod
    def client(self, words: Sequence[str]) -> list[str]:
        """Return the words that have the client run a command at the place."""

    @abstractmethod
    def make_place(self) -> str:
        """Make an empty place and return its name. Raises InputError where there is none to be had, RuntimeLost."""

    @abstractmethod
    def remove_place(self, place: str) -> None:
        """Remove the place, and all that runs in it."""

    @property
    @abstractmethod
    def folder(self) -> str:
        """The working folder, as the place names it."""

    def start(self, folder: Folder | None = None) -> None:
        """Make the place; see `Runtime.start`."""
        self.stop()
        self._place = self.make_place()
        self._unpack(folder_of(folder or {}))

    def stop(self) -> None:
        """Remove the place; see `Runtime.stop`."""
        if self._place:
            place, self._place = self._place, ""
            self.remove_place(place)

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes = "",
        seconds: float = SECONDS,
        output_kb: int = OUTPUT_KB,
    ) -> CommandOutcome:
        """Run a command; see `Runtime.run`."""
        words = words_of(command, SHELL)
        self._held()
        limited = ["timeout", "-k", "1", f"{seconds:g}", *words]
        script = f'cd {shlex.quote(self.folder)} && "$@"; exit $?'  # a shell that stays tells how a signal ended it
        argv = self.client(["sh", "-c", script, "sh", *limited])
        began = time.monotonic()
        code, out, err, stopped = invoke(argv, as_bytes(stdin), seconds + GRACE, output_kb << 10)
        self._check(code, err)
        if code in LATE and time.monotonic() - began >= seconds:
            stopped = "timeout"
        ended = not stopped and code is not None and 0 <= code < 128
        told = (out.decode(errors="replace"), err.decode(errors="replace"))
        return CommandOutcome(code if ended else None, *told, stopped if stopped or ended else "killed")

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Write a file; see `Runtime.write`."""
        name = inside(path)
        script = 'mkdir -p "$1" && test ! -d "$2" && cat > "$2" && chmod "$3" "$2"'
        words = [posixpath.dirname(name) or ".", name, f"{mode:o}"]
        if self._own(script, words, as_bytes(content))[0] != 0:
            raise InputError(f"The file {path!r} cannot be written", "it is no folder, and lies in one")

    def read(self, path: str, most: int = LONGEST_FILE) -> bytes:
        """Read a file; see `Runtime.read`."""
        code, out = self._own('test -f "$1" && head -c "$2" "$1"', [inside(path), str(most)])
        if code != 0:
            raise InputError(f"There is no file {path!r} in the working folder")
        return out

    def snapshot(self) -> Folder:
        """Return the folder, packed at the place."""
        code, out = self._own("tar -cf - .", [])
        if code != 0:
            raise RuntimeLost("The working folder cannot be packed: the place needs tar, and at most 64 MiB in it")
        return _unpacked(out)

    def restore(self, folder: Folder) -> None:
        """Empty the folder and unpack another one into it."""
        self._own("find . -mindepth 1 -maxdepth 1 -exec rm -rf {} +", [])
        self._unpack(folder_of(folder))

    def _unpack(self, folder: Folder) -> None:
        if folder and self._own("tar -xpf -", [], packed(folder))[0] != 0:
            raise RuntimeLost("The working folder cannot be filled: the place needs tar, and room")

    def _own(self, script: str, words: Sequence[str], stdin: bytes = b"") -> tuple[int | None, bytes]:
        """Run a script of this class in the working folder; return its exit status and output."""
        self._held()
        whole = f"cd {shlex.quote(self.folder)} && {script}"
        argv = self.client(["sh", "-c", whole, "sh", *words])
        code, out, err, _ = invoke(argv, stdin, OWN_SECONDS, MOST_KB << 10)
        self._check(code, err)
        return code, out

    def _held(self) -> None:
        if not self._place:
            raise InputError("The runtime is not started", "start() comes first, stop() last")

    def _check(self, code: int | None, err: bytes) -> None:
        """Raise RuntimeLost where the client failed, not what it ran: that may look alike, so the place is asked."""
        if not self.looks_lost(code, err.decode(errors="replace")):
            return
        alive, _, said, _ = invoke(self.client(["true"]), b"", OWN_SECONDS, OUTPUT_KB << 10)
        if alive != 0:
            last = (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeLost(f"{self._place} was lost: {last}")

    @abstractmethod
    def looks_lost(self, code: int | None, said: str) -> bool:
        """Return whether an exit status and errors may be the client's own."""


class ContainerRuntime(ClientRuntime):
    """A container of docker or podman: no network, no rights, limits; removed when it is stopped.

    The image has `sh`, `tar`, `timeout` and `sleep`, as those of Debian, Alpine and busybox do. What a command leaves
    running ends with the container, not with the command.
    """

    def __init__(
        self,
        image: str,
        engine: Literal["docker", "podman"] = "docker",
        *,
        memory_mb: int = 512,
        processes: int = 64,
        cpus: float = 1.0,
        options: Sequence[str] = (),
    ) -> None:
        """Prepare; `options` are further words of the engine's `run`.

        Raises:
            InputError: the engine's program is not installed.
        """
        super().__init__()
        if shutil.which(engine) is None:
            raise InputError(f"There is no program '{engine}'", "containers are started by it", f"Install {engine}.")
        self.image, self.engine, self.options = image, engine, tuple(options)
        self.memory_mb, self.processes, self.cpus = memory_mb, processes, cpus

    @property
    def folder(self) -> str:
        """A folder of the container's own."""
        return FOLDER

    def start_words(self, name: str) -> list[str]:
        """Return the words that start the container."""
        limits = [f"--memory={self.memory_mb}m", f"--memory-swap={self.memory_mb}m", f"--pids-limit={self.processes}"]
        walls = ["--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--cpus={self.cpus:g}"]
        place = [f"--workdir={FOLDER}", "--entrypoint=sleep", *self.options, self.image, "1000000"]
        return [self.engine, "run", "--detach", "--rm", "--init", f"--name={name}", *walls, *limits, *place]

    def client(self, words: Sequence[str]) -> list[str]:
        """Return the words of the engine's `exec`."""
        return [self.engine, "exec", "--interactive", self._place, *words]

    def make_place(self) -> str:
        """Start a container."""
        name = f"grouprl-{secrets.token_hex(8)}"
        code, _, err, _ = invoke(self.start_words(name), b"", OWN_SECONDS, OUTPUT_KB << 10)
        if code != 0:
            last = (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            what = f"{self.engine} cannot start a container of '{self.image}': {last}"
            raise InputError(
                what, "the engine runs, and has the image", f"Try: {self.engine} run --rm {self.image} true"
            )
        return name

    def remove_place(self, place: str) -> None:
        """Remove the container with all that runs in it."""
        invoke([self.engine, "rm", "--force", place], b"", OWN_SECONDS, OUTPUT_KB << 10)

    def looks_lost(self, code: int | None, said: str) -> bool:
        """The engine fails with 1 or 125 to 127, and says so."""
        return code in (1, 125, 126, 127) and said.lstrip().startswith(("Error", "Cannot"))


class SshRuntime(ClientRuntime):
    """A folder on another machine, reached by ssh: made for each episode and removed after it.

    **It contains nothing**: commands have the rights and the network of the user on that machine, which should be there
    for this alone. Keys and hosts are as in the user's ssh configuration; ssh asks nothing.
    """

    def __init__(self, host: str, *, options: Sequence[str] = (), under: str = "/tmp") -> None:
        """Prepare.

        Args:
            host: what ssh takes: [user@]name.
            options: further words of ssh, before the host.
            under: where folders are made over there.

        Raises:
            InputError: ssh is not installed, or the host is an option.
        """
        super().__init__()
        if shutil.which("ssh") is None:
            raise InputError(
                "There is no program 'ssh'", "other machines are reached by it", "Install OpenSSH's client."
            )
        if not host or host.startswith("-"):
            raise InputError(f"The host is {host!r}", "it is what ssh takes: [user@]name")
        self.host, self.options, self.under = host, tuple(options), under

    @property
    def folder(self) -> str:
        """The folder that was made."""
        return self._place

    def client(self, words: Sequence[str]) -> list[str]:
        """Return the words of ssh: what runs over there is one text, which a shell reads there."""
        quiet = ["-T", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]
        return ["ssh", *quiet, *self.options, "--", self.host, shlex.join(words)]

    def make_place(self) -> str:
        """Make a folder over there."""
        argv = self.client(["mktemp", "-d", f"{self.under}/grouprl-XXXXXXXX"])
        code, out, err, _ = invoke(argv, b"", OWN_SECONDS, OUTPUT_KB << 10)
        if code != 0 or not out.strip():
            last = (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            rule = "ssh reaches it without asking, and a folder can be made there"
            raise InputError(f"No folder can be made on '{self.host}': {last}", rule, f"Try: ssh {self.host} true")
        return out.decode().strip()

    def remove_place(self, place: str) -> None:
        """Remove the folder."""
        script = 'chmod -R u+rwx "$1" 2>/dev/null; rm -rf -- "$1"'
        invoke(self.client(["sh", "-c", script, "sh", place]), b"", OWN_SECONDS, OUTPUT_KB << 10)

    def looks_lost(self, code: int | None, said: str) -> bool:
        """OpenSSH's client fails with 255."""
        return code == 255


@dataclass
class _Stream:
    source: int
    text: bytearray


def invoke(argv: Sequence[str], stdin: bytes, seconds: float, most: int) -> tuple[int | None, bytes, bytes, Stopped]:
    """Run a client; return its exit status, what it printed on both streams, and what stopped it.

    Raises:
        RuntimeLost: it cannot be started.
    """
    with io.BytesIO(stdin) as rest:
        try:
            child = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise RuntimeLost(f"{argv[0]} cannot be started: {error}") from error
        with child:
            stopped, out, err = _followed(child, rest, time.monotonic() + seconds, most)
            if stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
    return None if stopped else code, out, err, stopped


def _followed(
    child: subprocess.Popen[bytes], rest: io.BytesIO, deadline: float, most: int
) -> tuple[Stopped, bytes, bytes]:
    """Write the input and read both streams until they end, or one is too long, or the time is up."""
    assert child.stdin
    assert child.stdout
    assert child.stderr
    os.set_blocking(child.stdin.fileno(), False)
    streams = [_Stream(each.fileno(), bytearray()) for each in (child.stdout, child.stderr)]
    poll, open_streams = select.poll(), {each.source: each for each in streams}
    for source in open_streams:
        poll.register(source, select.POLLIN)
    poll.register(child.stdin.fileno(), select.POLLOUT)
    stopped: Stopped = ""
    while open_streams and not stopped:
        left = deadline - time.monotonic()
        if left <= 0:
            stopped = "timeout"
        for number, _ in poll.poll(max(0, 1000 * left)):
            if number not in open_streams:
                if not _fed(number, rest):
                    poll.unregister(number)
                    child.stdin.close()
                continue
            piece = os.read(number, 1 << 16)
            stream = open_streams[number]
            stream.text += piece[: most - len(stream.text)] if len(stream.text) < most else b""
            if not piece:
                poll.unregister(number)
                del open_streams[number]
            elif len(stream.text) >= most:
                stopped = "output"
    return stopped, bytes(streams[0].text), bytes(streams[1].text)


def _fed(target: int, rest: io.BytesIO) -> bool:
    """Write a piece of the input; return whether there is more."""
    place = rest.tell()
    piece = rest.read(1 << 16)
    if not piece:
        return False
    try:
        rest.seek(place + os.write(target, piece))
    except BlockingIOError:
        rest.seek(place)
    except BrokenPipeError:  # what it ran does not read its input
        return False
    return True


def packed(folder: Folder) -> bytes:
    """Return a folder as a tar file."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, entry in sorted(folder.items()):
            head = tarfile.TarInfo(path)
            head.mode, head.mtime = entry.mode, entry.time
            head.type = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}[entry.kind]
            if entry.kind == "link":
                head.linkname = os.fsdecode(entry.content)
            head.size = len(entry.content) if entry.kind == "file" else 0
            archive.addfile(head, io.BytesIO(entry.content) if entry.kind == "file" else None)
    return found.getvalue()


def _unpacked(content: bytes) -> dict[str, FolderEntry]:
    """Return what a tar file from the place holds; nothing is written anywhere."""
    found: dict[str, FolderEntry] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for head in archive:
                path = posixpath.normpath(head.name)
                if path == "." or path.startswith(("/", "..")):
                    continue
                mode, seconds = head.mode & 0o777, float(head.mtime)
                if head.isdir():
                    found[path] = FolderEntry("folder", mode, time=seconds)
                elif head.issym():
                    found[path] = FolderEntry("link", 0o777, os.fsencode(head.linkname), seconds)
                elif head.isfile() or head.islnk():
                    source = archive.extractfile(head)
                    found[path] = FolderEntry("file", mode, source.read() if source else b"", seconds)
    except (tarfile.TarError, OSError) as error:
        raise RuntimeLost(f"The working folder came back as no tar file: {error}") from error
    return dict(sorted(found.items()))
