"""The main function of the sampler's process, which ends with the trainer; its first message describes the sampler."""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection

from grouprl.processes.limits import die_with


def main(lifeline: str, connection: str) -> None:
    """Complete requests until the trainer ends, for whatever reason."""
    die_with(int(lifeline))  # before what takes seconds to be imported
    wire = Connection(int(connection))
    from grouprl.orchestrator.asynchronous.sampling_worker import serve

    serve(wire, pickle.loads(wire.recv_bytes()))
