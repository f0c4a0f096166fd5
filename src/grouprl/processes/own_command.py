"""A command of grouprl's own command line, run for Python code that waits for it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from grouprl.core.errors import RunError
from grouprl.processes import run_with_parent
from grouprl.processes.child_process import ChildProcess
from grouprl.processes.passed_signals import passed_on

INTERRUPTED = (130, 143, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a command that was interrupted, also before it listened to signals."""


def run_command(words: Sequence[str]) -> bool:
    """Run `grouprl` with these words as a process that ends with this one; its output is that of this process.

    Returns:
        True if it was interrupted.

    Raises:
        RunError: it ended with an error, which it has printed.
    """
    process = ChildProcess(run_with_parent.main, sys.executable, "-m", "grouprl", *words, output=1, errors=2)
    try:
        with passed_on(process):
            code = process.wait()
    finally:
        process.end()
    if code and code not in INTERRUPTED:
        raise RunError(f"the run ended with exit code {code}; it has said why on standard error")
    return code != 0
