"""The main function of the fork server, which starts workers as forks of itself.

Its first frame names a function that imports what the workers serve: `prepare`. It sends `READY` once it is safe to
fork: it has a single thread, and importing has opened no file and started no process that the forks would share.
Otherwise it ends. Each later message is a byte with the files of a worker to start: lifeline, requests, replies,
output, and the file for its exit code.
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
"""Format of a number sent to the parent: the process id of a new worker, an exit code, or minus the errno of a failed
start.
"""
FILES = 5


def main(lifeline: str, control: str) -> None:
    """Import what the workers need, then start workers until the parent closes its side."""
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
    """Import what workers need, and return whether this process is safe to fork: no thread, file or process would be
    shared.
    """
    before = _open_files()
    prepare, given = pickle.loads(told)
    prepare(given)
    return len(os.listdir("/proc/self/task")) == 1 and not _children() and _open_files() <= before


def _open_files() -> set[tuple[str, str]]:
    """Return the open files: the number of each and what it refers to."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is already closed
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


def _children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class _Copying:
    """Starts workers, and reports how each of them ended."""

    def __init__(self, lifeline: int, control: int) -> None:
        self.control, self.lifeline = socket.socket(fileno=control), lifeline
        self.held: dict[int, tuple[int, int]] = {}
        """By the file that signals a worker's end: its process id, and the file for its exit code."""

    def serve(self) -> list[int] | None:
        """Serve until the parent closes its side. In a newly forked worker, return the worker's files."""
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
                # Its number cannot be another's yet: a process that has ended keeps it until `_report` waits for it.
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
        """Become a worker: in a session of its own, with none of the files of the server or of other workers."""
        os.setsid()
        for end, (_, code) in self.held.items():
            os.close(end)
            os.close(code)
        os.close(files.pop())
        os.close(self.lifeline)
        # Only now, as the leader of a session: the parent may kill that session as soon as it knows the number.
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
    """Run as a worker from here on."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    if "numpy" in sys.modules:  # otherwise all forks would draw the same numbers if an environment ignores its seed
        sys.modules["numpy"].random.seed()
    work(lifeline, requests, replies)
