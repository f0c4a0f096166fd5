"""The sampler's process, started as a script: it learns from its first message where modules are found."""

import pickle
import sys
from multiprocessing.connection import Connection
from typing import Any


def main(connection: int, lifeline: int) -> None:
    """Draw what is asked for until the trainer ends, however it ends."""
    wire: Any = Connection(connection)
    sys.path[:] = pickle.loads(wire.recv_bytes())
    from grouprl.overlap.sampling import serve
    from grouprl.rewards.worker import die_with

    die_with(lifeline)
    serve(wire, pickle.loads(wire.recv_bytes()))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
