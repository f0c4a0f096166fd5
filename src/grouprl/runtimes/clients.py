"""The common part of runtimes that a command-line program drives, and other machines over ssh.

The programs are driven by their command lines and not by a library: docker's own library reaches no podman and no ssh,
and its exec has neither a deadline nor a limit for the output, which are most of what this module adds.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import select
import shlex
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.core.errors import InputError
from grouprl.runtimes.archive import BrokenArchive, packed, unpacked
from grouprl.runtimes.runtime import (
    LONGEST_FILE,
    OUTPUT_KB,
    SECONDS,
    CommandOutcome,
    FolderUnreadable,
    RuntimeLost,
    Stopped,
    as_bytes,
    folder_of,
    inside,
    no_file,
    not_started,
    words_of,
)
from grouprl.sandbox import Folder

SHELL = ("sh", "-c")
OWN_SECONDS = 120.0
"""Seconds that a client may take for its own work: starting a container, writing a file, packing a folder."""
MOST_KB = 64 << 10
"""Default of the largest size of a packed folder, in KiB."""
GRACE = 5.0
"""Extra seconds for a client after a command's limit, at which the command is stopped inside the place first."""
LATE = (124, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""Exit statuses of `timeout` for a stopped command: of coreutils, of busybox, and after a kill."""


class ClientRuntime(ABC):
    """The common part of such runtimes: commands, files and folders all go through one client and its streams."""

    most_kb = MOST_KB
    """Largest size of the packed folder, in KiB."""

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
            raise no_file(path)
        return out

    def snapshot(self) -> Folder:
        """Return the folder, packed at the place."""
        code, out = self._own("tar -cf - .", [])
        if code != 0:
            raise FolderUnreadable(f"The working folder cannot be packed: its limit is {self.most_kb >> 10} MiB")
        try:
            return unpacked(out, self.most_kb << 10)
        except BrokenArchive as error:
            raise FolderUnreadable(f"The working folder did not come back as a plain tar file: {error}") from error

    def restore(self, folder: Folder) -> None:
        """Empty the folder and unpack another one into it."""
        self._own("{ chmod -R u+rwx . 2>/dev/null; find . -mindepth 1 -maxdepth 1 -exec rm -rf {} +; }", [])
        self._unpack(folder_of(folder))

    def _unpack(self, folder: Folder) -> None:
        if folder and self._own("tar -xpf -", [], packed(folder))[0] != 0:
            raise RuntimeLost("The working folder cannot be filled: the place needs tar and enough disk space")

    def _own(self, script: str, words: Sequence[str], stdin: bytes = b"") -> tuple[int | None, bytes]:
        """Run a script of this class in the working folder; return its exit status and output."""
        self._held()
        whole = f"cd {shlex.quote(self.folder)} && {script}"
        argv = self.client(["sh", "-c", whole, "sh", *words])
        code, out, err, _ = invoke(argv, stdin, OWN_SECONDS, self.most_kb << 10)
        self._check(code, err)
        return code, out

    def _held(self) -> None:
        if not self._place:
            raise not_started()

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
