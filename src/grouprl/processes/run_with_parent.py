"""A foreign program that ends with this process: `ChildProcess(run_with_parent.main, "vllm", "serve", …)`."""

from __future__ import annotations

import os
import signal

from grouprl.processes.limits import die_with


def main(lifeline: str, *command: str) -> None:
    """Tie this process group to the pipe, then become `command`: the kernel also kills everything that it starts."""
    die_with(int(lifeline))
    os.set_inheritable(int(lifeline), True)
    hear_signals()
    os.execvp(command[0], command)


def hear_signals() -> None:
    """Unblock SIGINT and SIGTERM: a parent may ignore them, and Ray's processes block SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
