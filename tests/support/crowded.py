"""Calls that wait, as a call does that gets no processor on a crowded machine; processes import this file."""

from __future__ import annotations

import os
import time

from grouprl.rewards.contract import known_examples
from grouprl.rewards.verifier_calls import Apart, Spoiled


def while_it_is_there(path: str) -> str:
    """Compute for a while, then wait for as long as a file is there."""
    used = time.process_time() + 0.1
    while time.process_time() < used:
        pass
    while os.path.exists(path):
        time.sleep(0.01)
    return "done"


WAITING = Apart("crowded:while_it_is_there")
ENDLESS = Apart("crowded:endless")


def endless(path: str) -> str:
    """Use the processor without end."""
    while True:
        pass


@known_examples(("nowhere", {}, True), ("endless", {}, False))
def verdict(completion: str) -> float:
    """1 where a call ends, 0 where it is spoiled."""
    apart = ENDLESS if completion == "endless" else WAITING
    return float(not isinstance(apart(completion), Spoiled))
