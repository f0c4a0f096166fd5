"""A task of Slurm's `srun` as a rank: torchrun's variables, made of those that srun gives each task.

Slurm's manual, srun, "output environment variables": SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID, SLURM_STEP_NUM_TASKS,
SLURM_STEP_TASKS_PER_NODE, SLURM_STEP_NODELIST, SLURM_STEP_ID and SLURM_JOB_ID.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

PORTS = range(20000, 30000)
"""Ports at which ranks of a job may meet; each step of a job has its own among them."""


def variables_of_task(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables with which torchrun would start this task as a rank; None outside of `srun`.

    The ranks meet on the first node of the step, unless MASTER_ADDR and MASTER_PORT say otherwise. A task that sees a
    single GPU (`--gpus-per-task`) takes it.
    """
    if "SLURM_STEP_NUM_TASKS" not in given:  # a batch script has SLURM_PROCID and SLURM_NTASKS, too
        return None
    per_node = list(_tasks_per_node(given["SLURM_STEP_TASKS_PER_NODE"]))
    job, step = (int(given[name]) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    meeting = {
        "MASTER_ADDR": first_host(given["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(PORTS[(job * 31 + step) % len(PORTS)]),
    }
    shown = given.get("CUDA_VISIBLE_DEVICES", "")
    return {name: given.get(name) or own for name, own in meeting.items()} | {
        "RANK": given["SLURM_PROCID"],
        "WORLD_SIZE": given["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": "0" if shown and "," not in shown else given["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(per_node[int(given["SLURM_NODEID"])]),
    }


def first_host(listed: str) -> str:
    """Return the first host of Slurm's list, such as gpu[003-005,9],login: gpu003."""
    return re.sub(r"\[([^-,\]]+)[^\]]*\]", r"\1", re.split(r",(?![^\[]*\])", listed)[0])


def _tasks_per_node(listed: str) -> Iterator[int]:
    """Yield the number of tasks of each node out of Slurm's list, such as 4(x2),3."""
    for each in listed.split(","):
        count, _, times = each.partition("(x")
        yield from [int(count)] * int(times.rstrip(")") or 1)
