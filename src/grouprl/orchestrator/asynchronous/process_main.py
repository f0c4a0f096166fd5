"""The sampler's process, started as a script: it learns from its first message where modules are found."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def main(connection: int, lifeline: int) -> None:
    """Sample what is requested until the trainer ends, however it ends."""
    _worker().die_with(lifeline)  # before anything is imported: that takes seconds
    wire = Connection(connection)
    sys.path[:] = pickle.loads(wire.recv_bytes())
    from grouprl.orchestrator.asynchronous.worker import serve

    serve(wire, pickle.loads(wire.recv_bytes()))


def _worker() -> ModuleType:
    """Return the module of the reward workers without importing the package."""
    folder = os.path.abspath(__file__)
    for _ in range(3):  # the package: three folders above this file
        folder = os.path.dirname(folder)
    spec = importlib.util.spec_from_file_location("_worker", os.path.join(folder, "rewards", "worker.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
