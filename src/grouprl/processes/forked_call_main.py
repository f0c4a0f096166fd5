"""The main function of the process that imports functions and forks for each call of them.

A call gets a process of its own, so it begins in the same state as every other and cannot change what comes after it.
Its processor time and memory are limited by the kernel, which also ends a call that hangs inside of C code. A hook
ends a call that would write files, start programs, use the network or run text as a program.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from grouprl.core.errors import described
from grouprl.processes.frames import Replies, reply_line, write_all

LONGEST_VALUE = 1 << 19
KEPT = 32
"""Number of functions kept in memory, the most recently called ones, because a dataset that one of them holds may be
large.
"""
FORBIDDEN = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "tempfile.", "webbrowser.", "sqlite3.")
READING = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.listxattr", "os.getxattr")
FORBIDDEN_EXIT = 97
SPENT = 0.95
"""Share of its limit at which a call counts as having used up its processor time: the kernel's two clocks differ
slightly.
"""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class ForkedCall:
    """A call of `target`, "module:function"; with a `recipe`, a call of the function that `target` returns for it."""

    target: str
    arguments: tuple[object, ...]
    """The arguments, which are pickled; the result must be JSON."""
    limits: tuple[float, float, int]
    """Seconds of processor time, seconds of wall-clock time, and bytes of memory."""
    runs_text: bool = False
    """Whether the call may run text as a program."""
    recipe: tuple[object, ...] | None = None


def serve(given: None, calls: Iterator[ForkedCall], reply: Replies) -> None:
    """Report that the process has started, then answer each call with its outcome."""
    sys.dont_write_bytecode = True
    reply("ready")
    known: dict[str, Callable[..., object]] = {}
    for call in calls:
        key = f"{call.target} {call.recipe!r}"
        try:
            function = known.pop(key) if key in known else _find(call.target, call.recipe)
        except Exception:  # an import may raise anything
            reply("broken", traceback.format_exc()[-2000:])
            continue
        known[key] = function  # last, as the latest one
        if len(known) > KEPT:
            del known[next(iter(known))]
        reply(*answer(function, call))


def _find(target: str, recipe: tuple[object, ...] | None) -> Callable[..., object]:
    """Return the function "module:name", or the function that it returns for the recipe; all calls share its imports.

    A module's `warm_up` is called, so that what it caches need not be computed again in every fork.
    """
    module, _, name = target.partition(":")
    imported = importlib.import_module(module)
    found = getattr(imported, name)
    getattr(imported, "warm_up", int)()
    found = found if recipe is None else found(*recipe)
    # A collection in a fork would write to every object it visits, and so copy the pages that are shared.
    gc.freeze()
    return found


def answer(function: Callable[..., object], call: ForkedCall) -> list[object]:
    """Return the outcome of one call: ["value", v], ["raised", error], ["overdue", "cpu" or "wall"] or ["died",
    reason].
    """
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        _compute(function, call, sink)
    os.close(sink)
    found, in_time = _read(source, time.monotonic() + call.limits[1])
    os.close(source)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    if not in_time:  # a crowded machine did not give the call its processor time, so its outcome is unknown
        return ["overdue", "cpu" if used.ru_utime + used.ru_stime > SPENT * call.limits[0] else "wall"]
    return _outcome(found, status)


def _outcome(found: bytes, status: int) -> list[object]:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return ["overdue", "cpu"] if number == signal.SIGPROF else ["died", signal.Signals(number).name]
    if os.WEXITSTATUS(status) == FORBIDDEN_EXIT:
        return ["died", "it made a system call that verifiers are not allowed to make"]
    with contextlib.suppress(ValueError):
        value = json.loads(found)
        if isinstance(value, list) and len(value) == 2:
            return value
    return ["died", f"exit code {os.WEXITSTATUS(status)}"]


def _compute(function: Callable[..., object], call: ForkedCall, sink: int) -> None:
    """Compute the call in the forked process, write the outcome, and exit."""
    cpu, _, memory = call.limits
    try:
        # The default action ends even a call inside of C code, where a Python handler would have to wait.
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        # Pipes have no size, so the outcome can still be written.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        # In the fork alone: a hook cannot be removed, and would end the process that forks at its next fork.
        sys.addaudithook(_guard(call.runs_text))
        signal.setitimer(signal.ITIMER_PROF, cpu)
        try:
            outcome = ["value", function(*call.arguments)]
        except (Exception, SystemExit) as error:
            outcome = ["raised", described(error)[:1000]]
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_all(sink, reply_line(outcome))
    finally:
        # Exit handlers and unwritten buffers are those of the process that forked, so they must not run here.
        os._exit(0)


def _guard(runs_text: bool) -> Callable[..., None]:
    """Return an audit hook that ends the process when it does something a verifier must not do."""

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event == "open":
            mode, flags = values[1], values[2]
            bad = bool(set(mode or "") & set("wax+")) or bool((flags or 0) & WRITES)
        elif event == "exec":
            code = values[0]
            bad = not runs_text and isinstance(code, CodeType) and code.co_filename == "<string>"
        else:
            bad = event.startswith(FORBIDDEN) and event not in READING
        if bad:
            os._exit(FORBIDDEN_EXIT)

    return hook


def _read(source: int, deadline: float) -> tuple[bytes, bool]:
    """Read until the other side closes; False if the deadline came first."""
    found = bytearray()
    while (left := deadline - time.monotonic()) > 0:
        if select.select([source], [], [], left)[0]:
            piece = os.read(source, 1 << 16)
            if not piece or len(found) > LONGEST_VALUE:
                return bytes(found), True
            found += piece
    return b"", False
