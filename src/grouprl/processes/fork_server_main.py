"""The main function of the process that makes workers as copies of itself.

Its first frame names a function that imports what the workers serve: `prepare`. It says `READY` once it may be copied:
it has one thread, and importing has opened no file and started no process that the copies would share. Else it ends.
Then each message is a byte with the files of a worker to begin: lifeline, requests, replies, output, and where its exit
code is to be written.
"""

from __future__ import annotations

import array
import contextlib
import os
import pickle
import select
import socket
import struct
import sys

from grouprl.processes.frames import frames
from grouprl.processes.limits import die_with, limit_resources
from grouprl.processes.worker_main import work

READY = b"r"
NUMBER = struct.Struct(">q")
"""A process that was begun, the exit code of one that has ended, or minus the error that kept one from beginning."""
FILES = 5


def main(lifeline: str, control: str) -> None:
    """Import what is served, then begin workers until the parent closes its side."""
    own = int(lifeline), int(control)
    die_with(own[0])
    for each in own:
        os.set_inheritable(each, False)
    path, memory, told = next(frames(own[1]))
    sys.path[:] = path
    limit_resources(memory)
    if not _prepared(told):
        return
    os.write(own[1], READY)
    files = _Copying(*own).serve()
    if files is not None:  # this is a worker
        _become(*files)


def _prepared(told: bytes) -> bool:
    """Import what a worker will, and return whether copies of this process share nothing that they could spoil."""
    before = _open_files()
    prepare, given = pickle.loads(told)
    prepare(given)
    return len(os.listdir("/proc/self/task")) == 1 and not _children() and _open_files() <= before


def _open_files() -> set[tuple[str, str]]:
    """Return the files that are open, by their number and what they are."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing is closed by now
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


def _children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class _Copying:
    """Begins workers, and reports how each has ended."""

    def __init__(self, lifeline: int, control: int) -> None:
        self.control, self.lifeline = socket.socket(fileno=control), lifeline
        self.held: dict[int, tuple[int, int]] = {}
        """Process and file of its exit code, by the file that tells of its end."""

    def serve(self) -> list[int] | None:
        """Serve until the parent closes its side; in a worker that was begun, return its files."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                if number in self.held:
                    poll.unregister(number)
                    self._report(number)
                    continue
                files = self._request()
                if not files:
                    return None
                process = self._fork()
                if process == 0:
                    return self._mine(files)
                for file in files[:-1]:
                    os.close(file)
                if process is None:
                    os.close(files[-1])
                    continue
                end = os.pidfd_open(process)
                self.held[end] = process, files[-1]
                poll.register(end, select.POLLIN)

    def _request(self) -> list[int]:
        files = array.array("i")
        message, extra, _, _ = self.control.recvmsg(1, socket.CMSG_LEN(FILES * files.itemsize))
        for _, _, data in extra:
            files.frombytes(data)
        return list(files) if message else []

    def _fork(self) -> int | None:
        try:
            return os.fork()
        except OSError as error:
            self.control.sendall(NUMBER.pack(-(error.errno or 1)))
            return None

    def _mine(self, files: list[int]) -> list[int]:
        """Become a worker: in a session of its own, with nothing of the server or of other workers."""
        os.setsid()
        for end, (_, code) in self.held.items():
            os.close(end)
            os.close(code)
        os.close(files.pop())
        os.close(self.lifeline)
        self.control.sendall(NUMBER.pack(os.getpid()))
        self.control.close()
        return files

    def _report(self, end: int) -> None:
        process, file = self.held.pop(end)
        _, status = os.waitpid(process, 0)
        with contextlib.suppress(BrokenPipeError):
            os.write(file, NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os.close(file)
        os.close(end)


def _become(lifeline: int, requests: int, replies: int, output: int) -> None:
    """Be a worker from here on."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    if "numpy" in sys.modules:  # else all copies would draw the same numbers where an environment ignores its seed
        sys.modules["numpy"].random.seed()
    work(lifeline, requests, replies)
