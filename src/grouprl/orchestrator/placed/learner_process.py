"""What a learner's process begins with: it ends with the process that started it, then it is the command line."""

from __future__ import annotations

import os
import runpy
import signal
import sys

from grouprl.sandbox.kernel import die_with_parent


def main() -> None:
    """Run `grouprl` with the arguments that follow the number of the parent's process."""
    parent, *arguments = sys.argv[1:]
    die_with_parent(signal.SIGKILL)
    if os.getppid() != int(parent):
        return
    hear_signals()
    sys.argv = ["grouprl", *arguments]
    runpy.run_module("grouprl", run_name="__main__", alter_sys=True)


def hear_signals() -> None:
    """Let SIGINT and SIGTERM come through: Ray's processes, and what they start, block the former."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
