"""The main function of a worker: it sets its own limits, receives its function, and serves."""

from __future__ import annotations

import os
import pickle
import sys

from grouprl.processes.frames import Replies, frames
from grouprl.processes.limits import die_with, limit_resources, show_stacks


def main(lifeline: str, requests: str, replies: str, module: str) -> None:
    """Serve until the parent closes the requests; `module` only makes lists of processes readable."""
    work(int(lifeline), int(requests), int(replies))


def work(lifeline: int, requests: int, replies: int) -> None:
    """Serve as a worker from here on; the first frame holds the function that serves (see `WorkerSpec`)."""
    die_with(lifeline)
    show_stacks()
    # A program that outlives the worker must not hold these, or the parent would never see them closed.
    for own in (lifeline, requests, replies):
        os.set_inheritable(own, False)
    calls = frames(requests)
    path, memory, told = next(calls)
    sys.path[:] = path
    limit_resources(memory)
    serve, given = pickle.loads(told)  # imports the serving function, with the limits in force
    serve(given, calls, Replies(replies))
