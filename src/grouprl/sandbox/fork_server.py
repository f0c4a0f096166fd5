"""The fork server: a bare Python process that builds the walls once and then starts every run as a fork of itself.

It has nothing of the trainer in its memory, environment or open files. Each run has three processes: the watcher, which
sees the run from outside; the first process of the run, whose end also ends all others; and the program. Requests are
pickles from the trainer; replies are JSON and raw bytes, never unpickled.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import struct
import sys
import time
from typing import TYPE_CHECKING

from grouprl.processes.frames import framed, frames, write_all
from grouprl.sandbox import child, cpu_wait, folder, kernel, leftovers
from grouprl.sandbox.isolation import Room, Walls, build

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grouprl.core.json_types import JsonObject
    from grouprl.sandbox.cpu_wait import RunClock
    from grouprl.sandbox.program_outcome import RunRequest

    Become = Callable[[RunRequest, Walls, Room, tuple[int, int, int, int], int | None], None]

STATUS = struct.Struct("=ii")
PIECE = 1 << 16
PATIENCE = 1.0
"""Seconds that the first process of a run has to collect the program's exit status."""
LOOK_SECONDS = 0.02
"""Seconds between measurements of a program's files if nothing else limits them."""
OFTEN = """
    bisect collections copy dataclasses datetime decimal fractions functools heapq itertools linecache math operator
    random re statistics string textwrap traceback typing
"""


def main(level: str, requests: str, replies: str, *packages: str) -> None:
    """Build the walls, announce them, and serve until the trainer closes its side."""
    del sys.path[0]  # the folder of this package: its modules are already imported, and programs must find none of them
    _serve(level, packages, int(requests), int(replies))


def _serve(level: str, packages: tuple[str, ...], requests: int, replies: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prepare()
    processes = cpu_wait.open_processes()
    try:
        built = build(level, packages)
    except (OSError, KeyError) as error:
        _reply(replies, {"ready": False, "what": str(error)})
        return
    _reply(replies, {"ready": True, "filter": built.filtered})
    gc.collect()
    gc.freeze()
    for request in frames(requests):
        watcher = os.fork()
        if not watcher:
            try:
                _watch(request, built, requests, replies, child.become, processes)
            except BaseException as error:
                _reply(replies, {"why": "refused", "what": f"{type(error).__name__}: {error}"})
            finally:
                os._exit(0)
        os.waitpid(watcher, 0)


def _prepare() -> None:
    """Import modules that programs often use, so that forks share them; not threading, which triples a fork's cost."""
    for name in OFTEN.split():
        importlib.import_module(name)
    gc.disable()


def _watch(
    request: RunRequest, walls: Walls, requests: int, replies: int, become: Become, processes: int | None
) -> None:
    """Make a room, run the code in it, and reply with the outcome."""
    limits = request["limits"]
    with walls.room(limits["disk"]) as room:
        given = _given(room.folder, request)
        stdin = os.memfd_create("stdin")
        os.write(stdin, request["stdin"])
        os.lseek(stdin, 0, os.SEEK_SET)
        pipes = os.pipe(), os.pipe(), os.pipe(), os.pipe()
        looked, look = os.pipe()
        began, clock_began = time.monotonic(), time.time()
        first = os.fork()
        if not first:
            os.close(look)
            _be_first(request, walls, room, stdin, pipes, become, looked, processes)
        clock = cpu_wait.RunClock(cpu_wait.Watch(processes, first), limits)
        os.close(stdin)
        os.close(looked)
        for _, theirs in pipes:
            os.close(theirs)
        out, err, status, begun = (ours for ours, _ in pipes)
        seen = _Seen(limits["output"], out, err, status, walls.spill(room, limits["disk"]))
        seen.follow(clock, requests)
        number = os.read(begun, PIECE) if select.select([begun], [], [], 0)[0] else b""
        waited = max(clock.seen.seconds, clock.watch.one(int(number)) if seen.how is not None and number else 0.0)
        os.close(look)  # from here on the system may give the program's number to another process
        seen.await_end()
        _end(first, seen, walls.own_processes)
        seen.drain()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = seen.report() | {
            "seconds": time.monotonic() - began,
            "cpu": max(clock.seen.cpu, used.ru_utime + used.ru_stime),
        }
        report |= {"begun": bool(number), "waited": min(waited, report["seconds"])}
        left, bodies = _left(room.folder, request, given, clock_began)
    _reply(replies, report | left, bytes(seen.output[0]), bytes(seen.output[1]), *bodies)


def _given(room: str, request: RunRequest) -> dict[str, bytes]:
    """Put the program's files into the empty room; return those that count as unchanged."""
    folder.place(room, request.get("folder") or ())
    return {name: _place(room, name, content) for name, content in request["files"].items()}


def _left(
    room: str, request: RunRequest, given: dict[str, bytes], began: float
) -> tuple[dict[str, object], list[bytes]]:
    """Return the part of the reply about the files that the program left, and their contents, which follow it."""
    most = request["limits"]["disk"]
    if request.get("folder") is None:
        left, cut = leftovers.new_files(room, given, most)
        return {"files": [[name, len(body)] for name, body in left.items()], "files_cut": cut}, list(left.values())
    try:
        entries = folder.take(room, most, leftovers.MOST_ENTRIES, began, request["now"])
    except (folder.TooLarge, OSError) as error:
        return {"files": [], "files_cut": True, "too_large": str(error)}, []
    heads = [[path, kind, mode, seconds, len(content)] for path, kind, mode, content, seconds in entries]
    return {"files": [], "files_cut": False, "folder": heads}, [content for *_, content, _ in entries]


def _be_first(
    request: RunRequest,
    walls: Walls,
    room: Room,
    stdin: int,
    pipes: Sequence[tuple[int, int]],
    become: Become,
    looked: int,
    processes: int | None,
) -> None:
    """Start the program, collect orphans, and report how the program ended; never return.

    The program's process number is not released before the watcher has read its waiting time (`looked`).
    """
    kernel.die_with_parent(signal.SIGKILL)
    kernel.adopt_orphans()
    (_, out), (_, err), (_, status), (_, begun) = pipes
    program = os.fork()
    if not program:
        become(request, walls, room, (stdin, out, err, begun), processes)
    for theirs in (stdin, out, err, begun, *(() if processes is None else (processes,))):
        os.close(theirs)
    os.write(status, STATUS.pack(program, 0))
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # blocks until the watcher has looked
        if ended.si_pid == program:
            how = ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status
            os.write(status, STATUS.pack(program, how))
            os.read(looked, 1)
        os.waitpid(ended.si_pid, 0)
        if ended.si_pid == program:
            os.close(status)
            signal.pause()


class _Seen:
    """The output of a run up to a limit, and its end, as the watcher sees them."""

    def __init__(self, most: int, out: int, err: int, status: int, spill: Callable[[int], str] | None) -> None:
        self.most, self.sources, self.status, self.spill = most, (out, err), status, spill
        self.output = bytearray(), bytearray()
        self.cut = [False, False]
        self.program, self.how, self.stopped, self.what = 0, None, "", ""
        for source in (*self.sources, status):
            os.set_blocking(source, False)

    def follow(self, clock: RunClock, requests: int) -> None:
        """Read until the program ends, prints too much or takes too long, or the trainer is gone."""
        poll = select.poll()
        for source in (*self.sources, self.status):
            poll.register(source, select.POLLIN)
        poll.register(requests, 0)  # an empty pipe here means that the trainer is gone
        look = time.monotonic() + LOOK_SECONDS if self.spill else math.inf
        while self.how is None and not self.stopped:
            ready = poll.poll(max(0.0, 1000 * (min(clock.next, look) - time.monotonic())))
            if time.monotonic() >= clock.next and not ready:
                self.stopped = clock.over()
            elif time.monotonic() >= look:
                self._look()
                look = time.monotonic() + LOOK_SECONDS
            for source, _ in ready:
                if source == self.status:
                    self._read_status()
                elif source == requests:
                    self.stopped = "killed"
                elif not self._read(self.sources.index(source)):
                    poll.unregister(source)

    def _look(self) -> None:
        """Stop a program whose files exceed their limit."""
        alive = self.program if self.how is None else 0
        if self.spill and not self.stopped and (what := self.spill(alive)):
            self.stopped, self.what = "killed", what

    def await_end(self) -> None:
        """Wait until the first process has collected the program, so that its processor time is counted."""
        if self.how is not None:
            select.select([self.status], [], [], PATIENCE)

    def drain(self) -> None:
        """Read the rest of the output after the program's end, and measure its files once more."""
        self._look()
        for place in (0, 1):
            while self._read(place) and not self.cut[place]:
                pass

    def report(self) -> JsonObject:
        """Return the outcome of the run, with the lengths of its output."""
        code = None if self.how is None or self.stopped else os.waitstatus_to_exitcode(self.how)
        lengths = [len(text) for text in self.output]
        return {"stopped": self.stopped, "returncode": code, "lengths": lengths, "cut": self.cut, "what": self.what}

    def _read_status(self) -> None:
        text = os.read(self.status, STATUS.size)
        if not text:  # the first process ended before the program
            self.stopped = "killed"
        elif not self.program:
            self.program = STATUS.unpack(text)[0]
        else:
            self.how = STATUS.unpack(text)[1]

    def _read(self, place: int) -> bool:
        """Read once; return False at the end of the stream, or if nothing is available now."""
        try:
            text = os.read(self.sources[place], PIECE)
        except BlockingIOError:
            return False
        room = self.most - len(self.output[place])
        self.output[place].extend(text[:room])
        if len(text) > room:
            self.cut[place] = True
            self.stopped = self.stopped or "output"  # even if it ended meanwhile: no race
        return bool(text)


def _end(first: int, seen: _Seen, own_processes: bool) -> None:
    """Kill all processes of the run."""
    if not own_processes and seen.program:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(seen.program, signal.SIGKILL)
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)


def _place(folder: str, name: str, content: bytes) -> bytes:
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as target:
        target.write(content)
    return content


def _reply(target: int, head: dict[str, object], *bodies: bytes) -> None:
    write_all(target, framed(json.dumps(head).encode()) + b"".join(bodies))
