"""A stand-in of Slurm's srun: starts the tasks of a step on this machine, with the variables that srun gives each.

`python srun_stub.py --nodes=2 --ntasks-per-node=1 COMMAND …`; every node is this machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys

BATCH = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "localhost", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
"""What a batch script finds in its environment."""


def step(nodes: int, per_node: int) -> list[dict[str, str]]:
    """The variables of each task of a step."""
    shared = {
        **BATCH,
        "SLURM_NNODES": str(nodes),
        "SLURM_NTASKS": str(nodes * per_node),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_TASKS": str(nodes * per_node),
        "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{nodes})" if nodes > 1 else str(per_node),
    }
    places = [(node, local) for node in range(nodes) for local in range(per_node)]
    return [
        shared | {"SLURM_PROCID": str(task), "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}
        for task, (node, local) in enumerate(places)
    ]


def main() -> int:
    """Start the tasks, pass signals on to all of them as srun does, and return the highest exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ntasks-per-node", type=int, default=1)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    tasks = step(given.nodes, given.ntasks_per_node)
    started = [subprocess.Popen(given.command, env={**os.environ, **own}) for own in tasks]

    def pass_on(number: int, frame: object) -> None:
        for each in started:
            each.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    return max(abs(each.wait()) for each in started)


if __name__ == "__main__":
    sys.exit(main())
