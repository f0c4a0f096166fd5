"""The command line: parses, calls, prints."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from types import FrameType

from grouprl.core.renamed import RenamedWarning

INTERRUPTED = 130
LOADING = "<frozen importlib._bootstrap>"


def main() -> None:
    """Run `grouprl` with the arguments of the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    warnings.showwarning = _noted(warnings.showwarning)
    try:
        from grouprl.cli.app import app

        app()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupted:  # nothing is left to interrupt but the exit itself
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _noted(show: Callable[..., None]) -> Callable[..., None]:
    """Return what shows a warning: that a name is old as a sentence, everything else as `show` does."""

    def showwarning(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
        if issubclass(category, RenamedWarning):
            print(f"note: {message}", file=sys.stderr)
        else:
            show(message, category, *where, **more)

    return showwarning


def _interrupted(number: int, frame: FrameType | None) -> None:
    """End at once while modules are loaded, which extensions written in C do not survive gracefully; else raise."""
    while frame is not None:
        if frame.f_code.co_filename == LOADING:
            os.write(2, b"interrupted\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt
