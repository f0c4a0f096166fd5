"""Samplers on a cluster: workers with copies of the policy complete shares of the requests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import cast

import torch

from grouprl.config.run import parse_config
from grouprl.orchestrator.make_policy import build_policy, load_options
from grouprl.orchestrator.make_sharded_policy import whole_copy
from grouprl.orchestrator.on_ray.pool import PlacedJob, WorkerPool
from grouprl.orchestrator.on_ray.weights import PublishedWeights, publish, take
from grouprl.orchestrator.resolve import resolve
from grouprl.policy.sharded.sharded_policy import as_sharded
from grouprl.processes.current_ranks import current_ranks
from grouprl.protocols import Policy, Samples, SamplingSession
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.rollout.sharded.rank_sampler import exact_copies
from grouprl.rollout.sharded.request_shards import Prompt, Share, SharedSession, ShareSampler


@dataclass(frozen=True)
class SamplerSettings:
    """The setup of a sampler: the run's configuration, and the trainer's threads and device."""

    config: Mapping[str, object]
    threads: int
    device: str
    ranks: int = 1
    """The number of ranks over which the trainer's policy is sharded."""


class PlacedSampler(ShareSampler):
    """An `Engine` whose shares are completed by the workers of a pool; a share always goes to the same worker.

    There are `shares` shares, at least as many as workers, assigned in turn. If a share's worker is lost, its
    replacement completes the share again, in a session from the first requests on, so that the state kept between
    turns and the samples are the same.
    """

    def __init__(self, policy: Policy, pool: WorkerPool, shares: int = 1) -> None:
        super().__init__(policy, max(shares, pool.count))
        self.pool, self.seconds = pool, 0.0
        self._weights: PublishedWeights | None = None
        self._lives: dict[tuple[int, int], int] = {}
        """By session and share: the life of the worker to which the requests so far were last sent."""

    @property
    def exact(self) -> bool:
        """True if the log-probs equal the trainer's, because everything is computed in full precision."""
        return super().exact if current_ranks() is None else exact_copies(as_sharded(self.policy))

    def take_weights(self) -> None:
        """Publish the policy's weights; the workers load them with their next share."""
        begun = time.perf_counter()
        exchange = 1 if self._weights is None else self._weights.exchange + 1
        self._weights = publish(self.pool.host, self.policy, exchange, self.version)
        self.seconds = time.perf_counter() - begun

    def metrics(self) -> dict[str, float]:
        """Return the seconds that the last exchange of weights took in this process."""
        return {"seconds_sync": self.seconds}

    def complete(self, shares: Mapping[int, Share], session: SharedSession | None) -> Mapping[int, Samples[int]]:
        """Return the samples of each share."""
        if self._weights is None:
            self.take_weights()
        jobs = [self._job(number, share, session) for number, share in shares.items()]
        return dict(zip(shares, cast("list[Samples[int]]", self.pool.run(jobs)), strict=True))

    def _worker(self, share: int) -> int:
        return share % self.pool.count

    def _name(self, session: SharedSession, share: int) -> int:
        """Return the number by which a worker knows a share of a session, since it may hold several."""
        return session.number * self.count + share

    def _job(self, number: int, share: Share, session: SharedSession | None) -> PlacedJob:
        weights = self._weights
        if session is None:
            return PlacedJob("sample", lambda life: (weights, share), self._worker(number))
        key, batches = (session.number, number), list(session.batches[number])

        def arguments(life: int) -> tuple[object, ...]:
            # A worker's replacement knows nothing of the session: it is sent every batch from the first on.
            known = self._lives.get(key) == life
            self._lives[key] = life
            return weights, self._name(session, number), not known, batches[-1:] if known else batches

        return PlacedJob("sample_in_session", arguments, self._worker(number))

    def close_session(self, session: SharedSession) -> None:
        """Make the workers release the session's state."""
        open_on = [number for number in session.batches if (session.number, number) in self._lives]
        for number in open_on:
            life = self._lives.pop((session.number, number))
            worker = self._worker(number)
            if self.pool.life(worker) == life:
                self.pool.forget([self.pool.send(worker, "close_session", self._name(session, number))])


@dataclass
class _KeptSession:
    stack: ExitStack
    session: SamplingSession[Prompt, int]


class SamplingWorker:
    """A copy of the policy in a worker's process, and its sampler."""

    def __init__(self, told: SamplerSettings) -> None:
        torch.set_num_threads(told.threads)
        config = parse_config(told.config)
        torch.manual_seed(config.seed)
        run = resolve(config)
        self.policy = (
            build_policy(run) if told.ranks == 1 else whole_copy(run, load_options(run, config.model.name, config.seed))
        )
        self.sampler = LocalSampler(self.policy)
        self.alike = self.policy.device.type == told.device
        """Whether matrix products round as in the trainer, because the devices have the same type."""
        self._exchange = 0
        self._open: dict[int, _KeptSession] = {}

    def sample(self, weights: PublishedWeights, share: Share) -> Samples[int]:
        """Return the samples of a share of the requests, by these weights."""
        self._follow(weights)
        return self._told(self.sampler.sample(share))

    def sample_in_session(
        self, weights: PublishedWeights, number: int, afresh: bool, batches: list[Share]
    ) -> Samples[int]:
        """Complete batches of a session in turn and return the samples of the last; `afresh` restarts the session."""
        self._follow(weights)
        if afresh:
            self.close_session(number)
        if number not in self._open:
            stack = ExitStack()
            self._open[number] = _KeptSession(stack, stack.enter_context(self.sampler.session()))
        *before, last = batches
        for share in before:
            self._open[number].session.sample(share)
        return self._told(self._open[number].session.sample(last))

    def close_session(self, number: int) -> None:
        """Release the state of a session."""
        if number in self._open:
            self._open.pop(number).stack.close()

    def _follow(self, weights: PublishedWeights) -> None:
        if weights.exchange != self._exchange:
            take(weights, self.policy)
            self._exchange = weights.exchange
        self.sampler.version = weights.version

    def _told(self, samples: Samples[int]) -> Samples[int]:
        return replace(samples, exact=samples.exact and self.alike)
