"""Runtimes behind a command-line program: containers of docker or podman, and other machines over ssh."""

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
"""Seconds that a client may take for its own work: starting a container, writing a file, packing a folder."""
MOST_KB = 64 << 10
"""Largest size of a packed folder, in KiB."""
GRACE = 5.0
"""Extra seconds for a client after a command's limit, at which the command is stopped inside the place first."""
LATE = (124, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""Exit statuses of `timeout` for a stopped command: of coreutils, of busybox, and after a kill."""


class ClientRuntime(ABC):
    """The common part of such runtimes: commands, files and folders all go through one client and its streams."""

    def __init__(self) -> None:
        """Prepare a runtime without starting it."""
        self._place = ""

    @abstractmethod
    def client(self, words: Sequence[str]) -> list[str]:
        """Return the client's arguments for running a command at the place, the program's name included."""

    @abstractmethod
    def make_place(self) -> str:
        """Make an empty place and return its name; raise InputError if the settings allow none, or RuntimeLost."""

    @abstractmethod
    def remove_place(self, place: str) -> None:
        """Remove the place and end all its processes."""

    @property
    @abstractmethod
    def folder(self) -> str:
        """Path of the working folder inside the place."""

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
        script = f'cd {shlex.quote(self.folder)} && "$@"; exit $?'  # the shell reports a fatal signal
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
            raise InputError(
                f"The file {path!r} cannot be written",
                "the path must be in a folder, and not be one itself",
                "Choose another path",
            )

    def read(self, path: str, most: int = LONGEST_FILE) -> bytes:
        """Read a file; see `Runtime.read`."""
        code, out = self._own('test -f "$1" && head -c "$2" "$1"', [inside(path), str(most)])
        if code != 0:
            raise InputError(
                f"There is no file {path!r} in the working folder", remedy="Check the path, or write the file first"
            )
        return out

    def snapshot(self) -> Folder:
        """Return the folder, packed at the place."""
        code, out = self._own("tar -cf - .", [])
        if code != 0:
            raise RuntimeLost("The working folder cannot be packed: the place needs tar, and the folder at most 64 MiB")
        return _unpacked(out)

    def restore(self, folder: Folder) -> None:
        """Empty the folder and unpack another one into it."""
        self._own("find . -mindepth 1 -maxdepth 1 -exec rm -rf {} +", [])
        self._unpack(folder_of(folder))

    def _unpack(self, folder: Folder) -> None:
        if folder and self._own("tar -xpf -", [], packed(folder))[0] != 0:
            raise RuntimeLost("The working folder cannot be filled: the place needs tar and enough disk space")

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
            raise InputError(
                "The runtime is not started", "a runtime runs between start() and stop()", "Call start() first"
            )

    def _check(self, code: int | None, err: bytes) -> None:
        """Raise RuntimeLost if the client failed, not its command; both may look alike, so the place is probed."""
        if not self.looks_lost(code, err.decode(errors="replace")):
            return
        alive, _, said, _ = invoke(self.client(["true"]), b"", OWN_SECONDS, OUTPUT_KB << 10)
        if alive != 0:
            last = (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeLost(f"{self._place} was lost: {last}")

    @abstractmethod
    def looks_lost(self, code: int | None, said: str) -> bool:
        """Return whether an exit status and error output may be the client's own."""


class ContainerRuntime(ClientRuntime):
    """A container of docker or podman: no network, no rights, limits; removed when it is stopped.

    The image needs `sh`, `tar`, `timeout` and `sleep`, which Debian, Alpine and busybox have. Processes that a command
    leaves running end with the container, not with the command.
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
        """Prepare a container; `options` are further arguments of the engine's `run`.

        Raises:
            InputError: if the engine's program is not installed.
        """
        super().__init__()
        if shutil.which(engine) is None:
            raise InputError(f"There is no program '{engine}'", "containers need it", f"Install {engine}.")
        self.image, self.engine, self.options = image, engine, tuple(options)
        self.memory_mb, self.processes, self.cpus = memory_mb, processes, cpus

    @property
    def folder(self) -> str:
        """Path of the working folder inside the container."""
        return FOLDER

    def start_words(self, name: str) -> list[str]:
        """Return the argument list that starts the container."""
        limits = [f"--memory={self.memory_mb}m", f"--memory-swap={self.memory_mb}m", f"--pids-limit={self.processes}"]
        walls = ["--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--cpus={self.cpus:g}"]
        place = [f"--workdir={FOLDER}", "--entrypoint=sleep", *self.options, self.image, "1000000"]
        return [self.engine, "run", "--detach", "--rm", "--init", f"--name={name}", *walls, *limits, *place]

    def client(self, words: Sequence[str]) -> list[str]:
        """Return the argument list of the engine's `exec`."""
        return [self.engine, "exec", "--interactive", self._place, *words]

    def make_place(self) -> str:
        """Start a container."""
        name = f"grouprl-{secrets.token_hex(8)}"
        code, _, err, _ = invoke(self.start_words(name), b"", OWN_SECONDS, OUTPUT_KB << 10)
        if code != 0:
            last = (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            what = f"{self.engine} cannot start a container of '{self.image}': {last}"
            raise InputError(
                what, "the engine must be running and have the image", f"Try: {self.engine} run --rm {self.image} true"
            )
        return name

    def remove_place(self, place: str) -> None:
        """Remove the container and all its processes."""
        invoke([self.engine, "rm", "--force", place], b"", OWN_SECONDS, OUTPUT_KB << 10)

    def looks_lost(self, code: int | None, said: str) -> bool:
        """Return whether the status is 1 or 125 to 127, with an error message of the engine."""
        return code in (1, 125, 126, 127) and said.lstrip().startswith(("Error", "Cannot"))


class SshRuntime(ClientRuntime):
    """A folder on another machine, reached by ssh; it is made for each episode and removed afterwards.

    **It confines nothing**: commands have the rights and the network of the user on that machine, which should serve no
    other purpose. Keys and hosts are those of the user's ssh configuration; ssh never prompts.
    """

    def __init__(self, host: str, *, options: Sequence[str] = (), under: str = "/tmp") -> None:
        """Prepare a folder on another machine.

        Args:
            host: the host as ssh takes it, [user@]name.
            options: further arguments of ssh, before the host.
            under: parent of the folders on that machine.

        Raises:
            InputError: if ssh is not installed, or the host looks like an option.
        """
        super().__init__()
        if shutil.which("ssh") is None:
            raise InputError(
                "There is no program 'ssh'", "other machines are reached with it", "Install OpenSSH's client."
            )
        if not host or host.startswith("-"):
            raise InputError(f"The host is {host!r}", "it must have the form [user@]name, as for ssh")
        self.host, self.options, self.under = host, tuple(options), under

    @property
    def folder(self) -> str:
        """Path of the folder on the other machine."""
        return self._place

    def client(self, words: Sequence[str]) -> list[str]:
        """Return the argument list of ssh; the remote command is one text, which a shell reads there."""
        quiet = ["-T", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]
        return ["ssh", *quiet, *self.options, "--", self.host, shlex.join(words)]

    def make_place(self) -> str:
        """Make a folder on the other machine."""
        argv = self.client(["mktemp", "-d", f"{self.under}/grouprl-XXXXXXXX"])
        code, out, err, _ = invoke(argv, b"", OWN_SECONDS, OUTPUT_KB << 10)
        if code != 0 or not out.strip():
            last = (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            rule = "ssh must reach it without prompts, and be able to make a folder there"
            raise InputError(f"No folder can be made on '{self.host}': {last}", rule, f"Try: ssh {self.host} true")
        return out.decode().strip()

    def remove_place(self, place: str) -> None:
        """Remove the folder from the other machine."""
        script = 'chmod -R u+rwx "$1" 2>/dev/null; rm -rf -- "$1"'
        invoke(self.client(["sh", "-c", script, "sh", place]), b"", OWN_SECONDS, OUTPUT_KB << 10)

    def looks_lost(self, code: int | None, said: str) -> bool:
        """Return whether the status is 255, with which OpenSSH's client fails."""
        return code == 255


@dataclass
class _Stream:
    source: int
    text: bytearray


def invoke(argv: Sequence[str], stdin: bytes, seconds: float, most: int) -> tuple[int | None, bytes, bytes, Stopped]:
    """Run a client; return its exit status, its output on both streams, and the limit that stopped it.

    Raises:
        RuntimeLost: if the client cannot be started.
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
    """Write the input and read both streams until they end, one grows too long or the time is up."""
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
    except BrokenPipeError:  # the command does not read its input
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
    """Return the entries of a tar file from the place without writing them to disk."""
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
        raise RuntimeLost(f"The working folder did not come back as a tar file: {error}") from error
    return dict(sorted(found.items()))
