"""Event simulation of a run: samplers with slots for sequences, learners, and transfers of weights.

The roofline gives the duration of each event; the simulation adds what averages hide: random lengths of completions,
learners that wait for the last completion of a step, and samplers that wait because of the bound on staleness.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from grouprl.plan.cluster.hardware import Cluster
from grouprl.plan.cluster.placement import Placement
from grouprl.plan.cluster.roofline import Efficiency, tick
from grouprl.plan.cluster.workload import SPREAD, Workload


@dataclass(frozen=True)
class Simulated:
    """Results of a simulation, over the steps after the first, which has nothing to overlap with."""

    step_seconds: float
    tokens_per_second: float
    staleness: float
    """Mean number of weight updates between the first token of a step and its training."""
    sampler_busy: float
    """Share of time during which a sampler decodes."""
    learner_busy: float


@dataclass
class _Replica:
    """One sampling copy of the model, with its sequences ordered by the number of tokens after which they end."""

    slots: int
    ends: list[tuple[float, int]] = field(default_factory=list)
    tokens: float = 0.0
    """Number of tokens that this copy has decoded in each slot since the beginning."""
    since: float = 0.0
    """Time up to which `tokens` counts; later than now while new weights arrive."""
    busy: float = 0.0
    version: int = 0
    """Grows with every change, so that events scheduled before a change are recognised as stale."""


class Simulation:
    """Samplers and learners of a placement."""

    def __init__(
        self,
        work: Workload,
        cluster: Cluster,
        placement: Placement,
        speed: Efficiency,
        *,
        staleness: int,
        seed: int = 0,
    ) -> None:
        """Prepare; samplers may run `staleness` steps ahead of the learners (0: both work in turn)."""
        self.work, self.placement, self.staleness = work, placement, staleness
        self._random = np.random.default_rng(seed)
        rollout = placement.sampling
        most = min(rollout.at_once, work.rows)
        self._seconds = [0.0] + [tick(work, cluster, rollout.ranks, n, speed) for n in range(1, most + 1)]
        self._prefill = rollout.prefill * rollout.replicas / work.prompts  # seconds of a prompt on one copy
        self.replicas = [_Replica(most) for _ in range(rollout.replicas)]
        self.now, self.trained, self.begun = 0.0, 0, 0
        self._waiting: deque[tuple[int, float]] = deque()
        self._missing: dict[int, int] = {}
        self._ready: deque[int] = deque()
        self._events: list[tuple[float, int, str, int]] = []
        self._free_at, self._learning = 0.0, 0.0
        self._started: dict[int, int] = {}
        self.ended: list[float] = []
        self.stale: list[int] = []

    def run(self, steps: int) -> Simulated:
        """Simulate `steps` steps, of which there must be at least two."""
        assert steps >= 2
        self._admit(steps)
        while self.trained < steps:
            self.now, number, what, version = heapq.heappop(self._events)
            if what == "updated":
                self._send()
            elif what == "trained":
                self.trained += 1
                self.ended.append(self.now)
                self._admit(steps)
                self._learn()
            elif version == self.replicas[number].version:
                self._finish(number)
        spans = np.diff(self.ended)
        seconds = float(spans.mean())
        return Simulated(
            step_seconds=seconds,
            tokens_per_second=self.work.sampled_tokens / seconds,
            staleness=fmean(self.stale[1:]),
            sampler_busy=sum(each.busy for each in self.replicas) / len(self.replicas) / self.now,
            learner_busy=self._learning / self.now,
        )

    def _admit(self, steps: int) -> None:
        """Begin the steps that the bound on staleness allows, and give their sequences to free slots."""
        while self.begun < min(steps, self.trained + self.staleness + 1):
            normal = self._random.normal(-(SPREAD**2) / 2, SPREAD, self.work.rows)
            lengths = np.clip(np.rint(self.work.completion_tokens * np.exp(normal)), 1, self.work.longest)
            self._waiting.extend((self.begun, float(length)) for length in lengths)
            self._missing[self.begun], self._started[self.begun] = self.work.rows, self.trained
            self.begun += 1
        self._fill(range(len(self.replicas)))

    def _fill(self, numbers: range | tuple[int, ...]) -> None:
        """Give each waiting sequence to the copy that has the fewest at that moment."""
        free = [(len(self.replicas[number].ends), number) for number in numbers]
        heapq.heapify(free)
        touched = set()
        while self._waiting and free:
            load, number = heapq.heappop(free)
            replica = self.replicas[number]
            if load >= replica.slots:
                continue
            if number not in touched:
                self._advance(replica)
                touched.add(number)
            step, length = self._waiting.popleft()
            prefill = self._prefill / self.work.group_size / max(self._seconds[min(load + 1, replica.slots)], 1e-12)
            heapq.heappush(replica.ends, (replica.tokens + length + prefill, step))
            heapq.heappush(free, (load + 1, number))
        for number in touched:
            self._foresee(number)

    def _advance(self, replica: _Replica) -> None:
        """Decode on a copy up to the current time."""
        passed = max(0.0, self.now - replica.since)  # `since` is in the future while new weights arrive
        if replica.ends:
            replica.tokens += passed / self._seconds[len(replica.ends)]
            replica.busy += passed
        replica.since = max(replica.since, self.now)

    def _foresee(self, number: int) -> None:
        replica = self.replicas[number]
        replica.version += 1
        if replica.ends:
            left = max(0.0, replica.ends[0][0] - replica.tokens)
            at = replica.since + left * self._seconds[len(replica.ends)]
            heapq.heappush(self._events, (at, number, "sampled", replica.version))

    def _finish(self, number: int) -> None:
        """Remove the sequence that ended, and fill its slot."""
        replica = self.replicas[number]
        self._advance(replica)
        _, step = heapq.heappop(replica.ends)
        self._missing[step] -= 1
        if not self._missing[step]:
            self._ready.append(step)
            self._learn()
        self._fill((number,))
        self._foresee(number)

    def _learn(self) -> None:
        """Train on the oldest complete step, if the learners are free."""
        if not self._ready or self._free_at > self.now:
            return
        step = self._ready.popleft()
        seconds = self.placement.training.seconds
        self._learning += seconds
        self.stale.append(self.trained - self._started[step])
        self._free_at = self.now + seconds + self.placement.sync
        heapq.heappush(self._events, (self.now + seconds, -1, "updated", 0))

    def _send(self) -> None:
        """Send new weights, during which learners and samplers stand still."""
        for number, replica in enumerate(self.replicas):
            self._advance(replica)
            replica.since = self.now + self.placement.sync
            self._foresee(number)
        heapq.heappush(self._events, (self.now + self.placement.sync, -1, "trained", 0))


def simulate(
    work: Workload, cluster: Cluster, placement: Placement, speed: Efficiency, *, steps: int = 6, seed: int = 0
) -> Simulated:
    """Simulate a placement; an asynchronous one runs ahead by its staleness."""
    ahead = placement.staleness if placement.kind == "asynchronous" else 0
    return Simulation(work, cluster, placement, speed, staleness=ahead, seed=seed).run(steps)
