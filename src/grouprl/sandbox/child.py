"""The process that becomes the model-written program: limits, walls, then the code as `__main__`."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import fcntl
import gc
import linecache
import math
import os
import random
import resource
import signal
import sys
import traceback
from typing import TYPE_CHECKING

from grouprl.sandbox.cpu_wait import own_number
from grouprl.sandbox.isolation import Room, Walls

if TYPE_CHECKING:
    from grouprl.sandbox.program_outcome import PlainLimits, RunRequest

NAME = "main.py"
"""The file name of the code in tracebacks."""
OPEN_FILES = 64
BEGUN = 3
"""File descriptor of the pipe while the walls are entered."""
KEEPERS = 3
"""Number of the user's processes that exist before the code runs."""


def become(
    request: RunRequest, walls: Walls, room: Room, pipes: tuple[int, int, int, int], processes: int | None
) -> None:
    """Run the code, or the command, in the calling process, which ends with it; never return.

    `pipes` holds its three streams, and one that announces that the walls stand, by the process's number in the open
    `/proc`, `processes`. The code never gets this pipe or `processes`.
    """
    status = 1
    try:
        number = own_number(processes)
        os.setsid()
        *streams, begun = [fcntl.fcntl(pipe, fcntl.F_DUPFD, OPEN_FILES) for pipe in pipes]
        for place, pipe in enumerate((*streams, begun)):
            os.dup2(pipe, place)
        os.closerange(BEGUN + 1, 1 << 16)
        os.chdir(room.folder)
        _default_signals()
        _limit(request["limits"])
        walls.enter(room)
        _tidy(room, walls)
        os.write(BEGUN, b"%d" % number)
        os.close(BEGUN)
    except BaseException:  # no code has run yet, and the finished walls have not been announced
        traceback.print_exc()
        os._exit(_flushed(1))
    try:
        if request.get("argv"):
            status = _execute(request["argv"])
        else:
            if request.get("isolated"):
                sys.path.remove(room.folder)
            status = _run(request["code"])
    finally:
        os._exit(_flushed(status))


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _limit(limits: PlainLimits) -> None:
    seconds = max(1, math.ceil(limits["cpu"]))
    for kind, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["disk"]),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, limits["processes"] + KEEPERS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        _, hard = resource.getrlimit(kind)
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        # A program may treat the signal at its soft time limit as a warning: a second later it is killed.
        resource.setrlimit(
            kind, (soft, soft + 1 if kind == resource.RLIMIT_CPU and hard == resource.RLIM_INFINITY else soft)
        )


def _tidy(room: Room, walls: Walls) -> None:
    """Reset the environment, modules, path and random state to those of a fresh program in an empty folder."""
    os.environ.clear()
    os.environ.update(HOME=room.folder, TMPDIR=room.temporary, PATH="/usr/bin:/bin", LANG="C.UTF-8", PYTHONUTF8="1")
    for name in [name for name in sys.modules if name.partition(".")[0] == "grouprl"]:
        del sys.modules[name]
    sys.path[:] = [room.folder, *sys.path, *walls.packages]
    sys.argv[:] = [NAME]
    random.seed(0)
    gc.enable()


def _execute(argv: list[str]) -> int:
    """Become a command; if there is none of this name, return the exit status that a shell would give."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals, and a program inherits that
        signal.signal(number, signal.SIG_DFL)
    folders = dict.fromkeys((os.path.join(sys.base_prefix, "bin"), "/usr/local/bin", "/usr/bin", "/bin"))
    environment = {**os.environ, "PATH": ":".join(folders), "PYTHONDONTWRITEBYTECODE": "1", "TERM": "dumb"}
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        os.write(2, os.fsencode(f"{argv[0]}: command not found\n"))
        return 127
    except (OSError, ValueError) as error:
        os.write(2, os.fsencode(f"{argv[0]}: {error}\n"))
        return 126


def _run(code: str) -> int:
    """Run the code and return the exit status that `python main.py` would have."""
    main = type(sys)("__main__")
    main.__dict__.update(__builtins__=builtins, __file__=NAME)
    sys.modules["__main__"] = main
    linecache.cache[NAME] = (len(code), None, code.splitlines(keepends=True), NAME)
    try:
        exec(compile(code, NAME, "exec"), main.__dict__)
        return 0
    except SystemExit as ended:
        return _exit_status(ended.code)
    except BaseException as error:
        _report(error)
        return 1
    finally:
        with contextlib.suppress(BaseException):
            if "threading" in sys.modules:
                sys.modules["threading"]._shutdown()
            atexit._run_exitfuncs()


def _report(error: BaseException) -> None:
    """Print the traceback without the frames of this file."""
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    try:
        traceback.print_exception(type(error), error, inner)
    except MemoryError:
        os.write(2, b"MemoryError\n")


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with contextlib.suppress(BaseException):
        print(code, file=sys.stderr)
    return 1


def _flushed(status: int) -> int:
    """Flush both output streams and return `status`; a program may have closed its streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    return status
