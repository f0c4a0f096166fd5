"""A process that has imported a task and makes workers as copies of itself: started as a script.

Its first frame is that of a worker (`grouprl.envs.stage_worker`). It says `READY` once it has imported the task and may
be copied: it has one thread, and importing and making an environment have opened no file and started no process that
the copies would share. Else it ends. Then each message is a byte with the files of a worker to begin: requests,
replies, lifeline, output, and where its exit code is to be written.
"""

import array
import contextlib
import faulthandler
import importlib
import importlib.util
import os
import select
import signal
import socket
import struct
import sys
from types import ModuleType

READY = b"r"
NUMBER = struct.Struct(">q")
"""A process that was begun, the exit code of one that has ended, or minus the error that kept one from beginning."""
FILES = 5
MODULES = (
    "asyncio",
    "grouprl.envs.async_methods",
    "grouprl.envs.environment",
    "grouprl.envs.json_values",
    "grouprl.envs.stage",
)


def main(control: int, lifeline: int) -> None:
    """Import the task, then begin workers until the parent closes its side."""
    shared = _beside("rewards/worker.py")
    shared.die_with(lifeline)
    for ours in (control, lifeline):
        os.set_inheritable(ours, False)
    hello = next(shared.frames(control))
    sys.path[:] = hello["path"]
    shared.limit_resources(hello["memory"])
    shared.use_bare_package(hello["package"])
    if not _imported(hello["parcel"]):
        return
    os.write(control, READY)
    files = _Copying(control, lifeline).serve()
    if files is not None:  # this is a worker
        _work(shared, *files)


def _imported(parcel: dict[str, object]) -> bool:
    """Import what a worker will, and return whether copies of this process share nothing that they could spoil."""
    before = _open_files()
    for name in MODULES:
        importlib.import_module(name)
    importlib.import_module("grouprl.rewards.transport").unpack(parcel).environment()
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

    def __init__(self, control: int, lifeline: int) -> None:
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


def _work(shared: ModuleType, requests: int, replies: int, lifeline: int, output: int) -> None:
    """Be a worker (`grouprl.envs.stage_worker`) from here on; of which task, its first frame says."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    shared.die_with(lifeline)
    for ours in (requests, replies, lifeline):
        os.set_inheritable(ours, False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    if "numpy" in sys.modules:  # else all copies would draw the same numbers where an environment ignores its seed
        sys.modules["numpy"].random.seed()
    calls = shared.frames(requests)
    hello = next(calls)
    sys.path[:] = hello["path"]
    shared.limit_resources(hello["memory"])
    _beside("envs/stage_worker.py").serve(hello["parcel"], calls, replies, hello["seconds"])


def _beside(path: str) -> ModuleType:
    """Return a module of the package without importing the package."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    name = f"_{os.path.basename(path)[:-3]}"
    spec = importlib.util.spec_from_file_location(name, os.path.join(folder, path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
