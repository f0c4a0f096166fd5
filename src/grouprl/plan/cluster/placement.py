"""Placement of samplers and learners: every sensible one of a run on a cluster, the quickest first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from grouprl.plan.cluster.hardware import Cluster
from grouprl.plan.cluster.roofline import (
    USABLE,
    Efficiency,
    SamplingTime,
    TrainingTime,
    of_rank,
    sampling,
    syncing,
    training,
)
from grouprl.plan.cluster.workload import Workload

Kind = Literal["colocated", "separate", "asynchronous"]
WORDS: dict[Kind, str] = {
    "colocated": "all sample, then all train",
    "separate": "some sample, the others train, in turn",
    "asynchronous": "some sample while the others train",
}


@dataclass(frozen=True)
class Placement:
    """One way to place a run; all seconds are per step."""

    kind: Kind
    sampling: SamplingTime
    training: TrainingTime
    sync: float
    samplers: int
    learners: int

    @property
    def seconds(self) -> float:
        """Seconds of a step: those of the slower side if both work at once, else the sum of both."""
        parts = (self.sampling.seconds, self.training.seconds)
        return self.sync + (max(parts) if self.kind == "asynchronous" else sum(parts))

    @property
    def staleness(self) -> int:
        """The largest number of steps by which the sampling weights are behind the trained ones."""
        return 0 if self.kind != "asynchronous" else max(1, math.ceil(self.sampling.seconds / self.training.seconds))

    @property
    def idle(self) -> float:
        """The share of all accelerators' time spent waiting for the other side."""
        total = (self.samplers + self.learners) if self.kind != "colocated" else self.learners
        if self.kind == "colocated":
            return self.sync / self.seconds
        busy = self.samplers * self.sampling.seconds + self.learners * self.training.seconds
        return 1 - busy / (total * self.seconds)

    @property
    def waits_for(self) -> str:
        """The slowest part of a step, which is worth changing first."""
        parts = {
            f"decoding: {self.sampling.bound}": self.sampling.decode,
            "prefill": self.sampling.prefill,
            "training: products": self.training.compute,
            "scoring": self.training.scoring,
            "network: gradients and weights of training": self.training.exposed,
            "sync: new weights for the samplers": self.sync,
        }
        return max(parts, key=lambda name: parts[name])


def placements(work: Workload, cluster: Cluster, speed: Efficiency) -> list[Placement]:
    """Return the best placement of every kind and split, the quickest first; [] if the run does not fit."""
    found = [*_colocated(work, cluster, speed), *_separate(work, cluster, speed)]
    return sorted(found, key=lambda each: (each.seconds, each.kind, each.samplers))


def why_no_room(work: Workload, cluster: Cluster) -> str:
    """Say what a run lacks on a cluster on which it does not fit."""
    states, gathered, per_token = of_rank(work, cluster.count)
    row = work.prompt_tokens + work.longest
    passing = per_token * row / work.context
    return (
        f"each of its {cluster.count} has {cluster.accelerator.memory * USABLE / 1e9:.3g} GB to plan with. To train it "
        f"needs {states / 1e9:,.3g} GB for its part of weights, gradients and moments, {gathered / 1e9:,.3g} for the "
        f"layers that it gathers and {passing / 1e9:,.3g} for a row of {row:,.0f} tokens; a copy that samples takes "
        f"another {work.parameters * work.weight_bytes / 1e9:,.3g} GB and caches, over at most "
        f"{min(cluster.count, cluster.per_node)} of them"
    )


def _colocated(work: Workload, cluster: Cluster, speed: Efficiency) -> Iterator[Placement]:
    learned = _best_training(work, cluster, cluster.count, speed)
    if learned is None:
        return
    share = 1 - learned_share(work, cluster, learned)
    rollout = _best_sampling(work, cluster, cluster.count, speed, share)
    if rollout is not None:
        sync = syncing(work, cluster, cluster.count, 0, speed)
        yield Placement("colocated", rollout, learned, sync, cluster.count, cluster.count)


def learned_share(work: Workload, cluster: Cluster, learned: TrainingTime) -> float:
    """Return the share of a rank's memory that weights and moments occupy while the rank samples."""
    states = (4 * work.parameters + 12 * work.trainable) / learned.shard
    return min(1.0, states / (cluster.accelerator.memory * USABLE))


def _separate(work: Workload, cluster: Cluster, speed: Efficiency) -> Iterator[Placement]:
    for samplers in splits(cluster):
        learners = cluster.count - samplers
        learned = _best_training(work, cluster, learners, speed)
        rollout = _best_sampling(work, cluster, samplers, speed)
        if learned is None or rollout is None:
            continue
        sync = syncing(work, cluster, learners, samplers, speed)
        yield Placement("separate", rollout, learned, sync, samplers, learners)
        yield Placement("asynchronous", rollout, learned, sync, samplers, learners)


def splits(cluster: Cluster) -> list[int]:
    """Return the numbers of accelerators that may sample: any with one or two nodes, else those of whole nodes."""
    unit = 1 if cluster.nodes <= 2 else cluster.per_node
    units = cluster.count // unit
    # Some 64 splits are enough to see where the best is, and each asks for the best sampling and training anew.
    stride = max(1, units // 64)
    return [unit * part for part in range(stride, units, stride)]


def _best_sampling(
    work: Workload, cluster: Cluster, count: int, speed: Efficiency, share: float = 1.0
) -> SamplingTime | None:
    found = [sampling(work, cluster, count, ranks, speed, share) for ranks in _powers(min(count, cluster.per_node))]
    return min((each for each in found if each is not None), key=lambda each: each.seconds, default=None)


def _best_training(work: Workload, cluster: Cluster, ranks: int, speed: Efficiency) -> TrainingTime | None:
    shards = {ranks, *(each for each in _powers(min(ranks, cluster.per_node)) if ranks % each == 0)}
    found = [training(work, cluster, ranks, shard, speed) for shard in sorted(shards)]
    return min((each for each in found if each is not None), key=lambda each: each.seconds, default=None)


def _powers(most: int) -> list[int]:
    return [2**power for power in range(int(math.log2(most)) + 1)]
