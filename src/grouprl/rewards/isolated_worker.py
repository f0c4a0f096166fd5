"""The process in which single calls run apart: a script that imports the function and forks for each call.

A call gets a process of its own, so it begins in the same state as every other and cannot change what comes after it.
Its processor time and memory are limited by the kernel, which also ends a call that hangs inside of C code. A hook
ends a call that would write files, start programs, use the network or run text as a program.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_VALUE = 1 << 19
KEPT = 32
"""Functions that are kept, those of the latest calls: what a dataset holds is not small."""
FORBIDDEN = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "tempfile.", "webbrowser.", "sqlite3.")
READING = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.listxattr", "os.getxattr")
FORBIDDEN_EXIT = 97
SPENT = 0.95
"""Share of its processor time from which on a call has used it up: the kernel's two clocks differ a little."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main(requests: int, replies: int, lifeline: int) -> None:
    """Say that the process is there, and answer calls until the parent closes the requests."""
    worker = _sibling("worker")
    worker.die_with(lifeline)
    for ours in (requests, replies, lifeline):
        os.set_inheritable(ours, False)
    hello = next(worker.frames(requests))
    sys.path[:] = hello["path"]
    sys.dont_write_bytecode = True
    worker.use_bare_package(hello["package"])
    _send(replies, ["ready"])
    known: dict[str, Callable[..., object]] = {}
    for target, recipe, runs_text, limits, arguments in worker.frames(requests):
        key = f"{target} {recipe!r}"
        try:
            function = known.pop(key) if key in known else _find(target, recipe)
        except Exception:  # an import may raise anything
            _send(replies, ["broken", traceback.format_exc()[-2000:]])
            continue
        known[key] = function  # last, as the latest one
        if len(known) > KEPT:
            del known[next(iter(known))]
        _send(replies, call(function, arguments, limits, runs_text))


def _find(target: str, recipe: tuple[object, ...] | None) -> Callable[..., object]:
    """Return the function "module:name", or what it returns for the recipe; what it imports is shared by all calls.

    A module's `warm_up` is called, so that what it caches need not be computed again in every fork.
    """
    module, _, name = target.partition(":")
    imported = importlib.import_module(module)
    found = getattr(imported, name)
    getattr(imported, "warm_up", int)()
    found = found if recipe is None else found(*recipe)
    gc.freeze()
    return found


def call(
    function: Callable[..., object], arguments: tuple[object, ...], limits: tuple[float, float, int], runs_text: bool
) -> list[object]:
    """Return ["value", v], ["raised", what], ["overdue", "cpu" or "wall"] or ["died", why] of one call.

    The limits are seconds of processor time, seconds on the wall, and bytes of memory.
    """
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        _answer(function, arguments, limits, runs_text, sink)
    os.close(sink)
    found, in_time = _read(source, time.monotonic() + limits[1])
    os.close(source)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    if not in_time:  # a machine that is crowded did not give the call its time: nobody knows what it would have said
        return ["overdue", "cpu" if used.ru_utime + used.ru_stime > SPENT * limits[0] else "wall"]
    return _outcome(found, status)


def _outcome(found: bytes, status: int) -> list[object]:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return ["overdue", "cpu"] if number == signal.SIGPROF else ["died", signal.Signals(number).name]
    if os.WEXITSTATUS(status) == FORBIDDEN_EXIT:
        return ["died", "it did what a verifier may not do"]
    with contextlib.suppress(ValueError):
        value = json.loads(found)
        if isinstance(value, list) and len(value) == 2:
            return value
    return ["died", f"exit code {os.WEXITSTATUS(status)}"]


def _answer(
    function: Callable[..., object],
    arguments: tuple[object, ...],
    limits: tuple[float, float, int],
    runs_text: bool,
    sink: int,
) -> None:
    """Compute in the forked process, write the outcome, and end."""
    try:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_DATA, (limits[2], limits[2]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        sys.addaudithook(_guard(runs_text))
        signal.setitimer(signal.ITIMER_PROF, limits[0])
        try:
            outcome = ["value", function(*arguments)]
        except (Exception, SystemExit) as error:
            outcome = ["raised", f"{type(error).__name__}: {error}"[:1000]]
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(sink, outcome)
    finally:
        os._exit(0)


def _guard(runs_text: bool) -> Callable[..., None]:
    """Return a hook that ends the process on what a verifier must not do."""

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


def _send(sink: int, values: list[object]) -> None:
    rest = json.dumps(values).encode() + b"\n"
    while rest:
        rest = rest[os.write(sink, rest) :]


def _sibling(name: str) -> ModuleType:
    """Load a module beside this script, before the package can be imported."""
    spec = importlib.util.spec_from_file_location(f"_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
