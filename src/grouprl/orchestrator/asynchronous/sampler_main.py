"""The sampler's process: it ends with the trainer, and its first message says what to sample with."""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection

from grouprl.processes.limits import die_with


def main(lifeline: str, connection: str) -> None:
    """Sample what is requested until the trainer ends, however it ends."""
    die_with(int(lifeline))  # before what takes seconds to be imported
    wire = Connection(int(connection))
    from grouprl.orchestrator.asynchronous.sampling_worker import serve

    serve(wire, pickle.loads(wire.recv_bytes()))
