"""The choice of the process in which a reward runs: the run's own if it always ends, else workers with a clock."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Literal

from grouprl.processes.parcel import CannotSend, refuse_system
from grouprl.processes.usage import core_count
from grouprl.rewards.by_task.code import passes_tests
from grouprl.rewards.catalogue.builtin import math_equal, regex_format
from grouprl.rewards.contract import Reward
from grouprl.rewards.reward_workers import RewardWorkers
from grouprl.rewards.validation import plain_rewards

MOST_WORKERS = 8
"""Largest number of workers if their number is `auto`."""


def in_workers(
    reward: Reward, workers: int | Literal["auto"], *, timeout: float, memory_gb: float
) -> tuple[Reward, str]:
    """Return the reward to score with, and the reason why it is not in workers although it should be ("" otherwise).

    Args:
        reward: any form of the contract.
        workers: number of processes; 0 for this process; "auto" for this process if the reward consists of this
            package's own functions that always end, else for one worker per core.
        timeout: time limit of a completion, in seconds.
        memory_gb: memory of each worker, in GiB.

    Raises:
        CannotSend: if a number of workers is given and the reward cannot be sent to them.
    """
    if workers == 0 or (workers == "auto" and harmless(reward)):
        return reward, ""
    try:
        refuse_system()
        count = min(MOST_WORKERS, core_count()) if workers == "auto" else workers
        return RewardWorkers(reward, count, timeout=timeout, memory_gb=memory_gb), ""
    except CannotSend as error:
        if workers != "auto":
            raise
        return reward, f"{error} It runs in this process: reward.timeout does not hold and a hang stops the run."


def harmless(reward: Reward) -> bool:
    """Return whether a reward consists of this package's own functions that end within microseconds on every text."""
    return all(_harmless(plain) for plain in plain_rewards(reward))


def _harmless(reward: Reward) -> bool:
    if isinstance(reward, partial):
        return reward.func is not regex_format and _harmless(reward.func)
    own = inspect.isfunction(reward) and reward.__module__.startswith("grouprl.")
    return own and reward not in (math_equal, passes_tests)
