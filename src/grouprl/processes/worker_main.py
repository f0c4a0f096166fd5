"""The main function of a worker: it takes its limits upon itself, learns what to serve, and serves."""

from __future__ import annotations

import os
import pickle
import sys

from grouprl.processes.frames import Replies, frames
from grouprl.processes.limits import die_with, limit_resources, show_stacks


def main(lifeline: str, requests: str, replies: str, module: str) -> None:
    """Serve until the parent closes the requests; lists of processes show in which `module` what serves is."""
    work(int(lifeline), int(requests), int(replies))


def work(lifeline: int, requests: int, replies: int) -> None:
    """Be a worker from here on. What it serves its first frame says: see `WorkerSpec`."""
    die_with(lifeline)
    show_stacks()
    for own in (lifeline, requests, replies):
        os.set_inheritable(own, False)
    calls = frames(requests)
    path, memory, told = next(calls)
    sys.path[:] = path
    limit_resources(memory)
    serve, given = pickle.loads(told)  # imports what serves, behind the limits
    serve(given, calls, Replies(replies))
