"""Rewards on a cluster: completions are distributed to workers, each of which has its own processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

from grouprl.config.sections import Reward as RewardSettings
from grouprl.orchestrator.on_ray.pool import PlacedJob, WorkerPool
from grouprl.processes.parcel import pack, unpack
from grouprl.rewards.catalogue.worker_choice import in_workers
from grouprl.rewards.contract import Columns, Reward, reward_name, takes_batch
from grouprl.rewards.validation import TERMS, Terms, Verdict, VerdictReward, plain_rewards, verdicts_of

PIECES = 4
"""Pieces per worker: a worker that finishes early takes another piece."""


def _whatever_life(given: tuple[object, ...], life: int) -> tuple[object, ...]:
    return given


@dataclass(frozen=True)
class PlacedParcel:
    """The packed object for a worker, and the limits of the processes that it starts."""

    parcel: dict[str, object]
    workers: int | Literal["auto"]
    timeout: float
    memory_gb: float


def reward_hello(reward: Reward, settings: RewardSettings) -> PlacedParcel:
    """Return the setup of a worker that scores.

    Raises:
        CannotSend: the reward can neither be imported in another process nor pickled for it.
    """
    return PlacedParcel(pack(reward, "reward"), settings.workers, settings.timeout, settings.memory_gb)


class PlacedReward(VerdictReward):
    """A reward computed by the workers of a pool; usable wherever a reward is.

    Other workers score the pieces of a lost one. A reward that takes the whole batch in one call receives it whole.
    """

    def __init__(self, reward: Reward, pool: WorkerPool) -> None:
        self.__name__ = reward_name(reward)
        self.examples = getattr(reward, "examples", ())
        self.pool, self._whole = pool, any(map(takes_batch, plain_rewards(reward)))

    def verdicts(
        self, completions: Sequence[str], columns: Sequence[Columns], ids: Sequence[str], terms: Terms = TERMS
    ) -> list[Verdict]:
        """Return the checked outcome of every sample, in order."""
        count = len(completions)
        size = count if self._whole else math.ceil(count / (PIECES * self.pool.count))
        jobs = []
        for start in range(0, count, max(1, size)):
            part = slice(start, start + size)
            given = (completions[part], columns[part], ids[part], terms)
            jobs.append(PlacedJob("verdicts", partial(_whatever_life, given)))
        return [verdict for piece in self.pool.run(jobs) for verdict in cast("list[Verdict]", piece)]


class ScoringWorker:
    """A reward in a worker's process, or in child processes of it, as `reward.workers` says."""

    def __init__(self, told: PlacedParcel) -> None:
        reward: Reward = unpack(told.parcel)
        self.reward, _ = in_workers(reward, told.workers, timeout=told.timeout, memory_gb=told.memory_gb)

    def verdicts(
        self, completions: Sequence[str], columns: Sequence[Columns], ids: Sequence[str], terms: Terms
    ) -> list[Verdict]:
        """Score a piece; see `grouprl.rewards.validation.verdicts_of`."""
        return verdicts_of(self.reward, completions, columns, ids, terms)
