"""The process in which rewards run: started as a script, so that it imports neither torch nor the main script.

It is told by its parent, through the first frame, where modules are found, how much memory it may have and which
reward to load. Then it answers jobs. A frame is eight bytes of length and a pickle; replies are lines of JSON, so that
the parent never has to unpickle what comes out of a process that runs untested code.
"""

import contextlib
import faulthandler
import fcntl
import importlib
import importlib.util
import os
import pickle
import resource
import select
import signal
import struct
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

LENGTH = struct.Struct(">Q")


class _Bare(ModuleType):
    """A package whose own code, which imports torch, runs only when a name of it is accessed.

    A name that is a module is imported alone: it may be accessed while the package's modules import each other.
    """

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        whole = f"{self.__name__}.{name}"
        if importlib.util.find_spec(whole) is not None:
            return importlib.import_module(whole)
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def main(requests: int, replies: int, lifeline: int) -> None:
    """Load the reward, say that it is there, and answer jobs until the parent closes the requests."""
    die_with(lifeline)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    for ours in (requests, replies, lifeline):
        os.set_inheritable(ours, False)
    hello = next(frames(requests))
    sys.path[:] = hello["path"]
    limit_resources(hello["memory"])
    use_bare_package(hello["package"])
    # By name and late: this script has imported nothing of the package, and must not before the bare one is in place.
    importlib.import_module("grouprl.rewards.jobs").serve(hello, frames(requests), replies)


def die_with(lifeline: int) -> None:
    """Have the kernel kill this process group when the parent ends, however it ends: its side of a pipe closes then.

    This needs no running Python code, so it also ends a reward that hangs.
    """
    if not hasattr(fcntl, "F_SETSIG"):  # not Linux: a reward that hangs then outlives a parent that was killed
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # it ended before anybody listened: no signal will come
        os._exit(0)


def limit_resources(memory: int) -> None:
    """Allow at most `memory` bytes of memory of the process's own, and no core dumps."""
    with contextlib.suppress(ValueError, OSError):  # a lower limit is in force already, or the system knows none
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def use_bare_package(folder: str) -> None:
    """Let `import grouprl.rewards` work without running the code of `grouprl` itself."""
    spec = importlib.util.spec_from_file_location(
        "grouprl", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _Bare
    sys.modules["grouprl"] = package


def frames(requests: int) -> Iterator[Any]:
    """Yield what the parent sends, until it closes its side."""
    while head := _read(requests, LENGTH.size):
        yield pickle.loads(_read(requests, LENGTH.unpack(head)[0]))


def _read(source: int, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = os.read(source, min(count - len(found), 1 << 20))
        if not piece:
            return b""
        found += piece
    return bytes(found)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
