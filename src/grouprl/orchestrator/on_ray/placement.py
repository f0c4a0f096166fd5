"""The kinds of work that a run places on its cluster, and the worker pools that do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import torch

from grouprl.config.sections import Placing
from grouprl.envs.environment_pool import Stage
from grouprl.orchestrator.on_ray.placed_counts import placed_counts
from grouprl.orchestrator.on_ray.pool import PoolLimits, WorkerPool
from grouprl.orchestrator.on_ray.ray_host import RayHost
from grouprl.orchestrator.on_ray.remote_environments import PlacedStage, stage_hello
from grouprl.orchestrator.on_ray.reward import PlacedReward, reward_hello
from grouprl.orchestrator.on_ray.sampler import PlacedSampler, SamplerSettings
from grouprl.orchestrator.on_ray.worker_host import Hello, Kind, WorkerHost, hello_of
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.policy.sharded.sharded_policy import as_sharded
from grouprl.policy.state import as_policy
from grouprl.processes.current_ranks import current_ranks
from grouprl.protocols import Engine, Policy, Trainable
from grouprl.rewards.contract import Reward
from grouprl.rollout.engines import LOCAL
from grouprl.rollout.sharded.rank_sampler import RankSampler
from grouprl.rollout.sharded.request_shards import Prompt, SharesHere

RESTARTED, REDONE = "workers_restarted", "work_redone"
"""Metrics: cluster workers that were replaced, and pieces of work that were repeated."""
MakeHost = Callable[[Placing, Mapping[Kind, int], Mapping[Kind, Hello]], WorkerHost]


class RunPlacement:
    """The cluster workers of a run, by kind: they sample and score its completions, and run its environments.

    `make_host` makes the host that starts workers (default: Ray); `device` is the device of the trainer's policy.

    Raises:
        CannotSend: the reward or the task can neither be imported in another process nor pickled for it.
        MissingExtra: Ray is not installed.
        RunError: the cluster cannot be reached, or lacks the resources.
    """

    def __init__(self, run: ResolvedRun, device: str, make_host: MakeHost | None = None) -> None:
        config = run.config
        cluster = config.cluster
        self.counts = placed_counts(run)
        hello: dict[Kind, object] = {}
        if "sampler" in self.counts:
            plain, threads = config.model_dump(mode="json"), torch.get_num_threads()
            hello["sampler"] = SamplerSettings(plain, threads, device, rank_count())
        if "reward" in self.counts:
            hello["reward"] = reward_hello(run.reward, config.reward)
        if "environment" in self.counts:
            hello["environment"] = stage_hello(run.task, config.environment)
        told = {kind: hello_of(values) for kind, values in hello.items()}
        self.host = (make_host or RayHost)(cluster, self.counts, told)
        limits = PoolLimits(cluster.timeout, cluster.start_timeout, cluster.restarts)
        self.pools = {
            kind: WorkerPool(self.host, kind, count, limits, lambda sentence: self.say(sentence))
            for kind, count in self.counts.items()
        }
        self.say: Callable[[str], None] = lambda sentence: None
        """Shows a sentence to the user."""
        self._read = (0, 0)

    def start(self) -> None:
        """Start every worker at the same time, without waiting for them."""
        for pool in self.pools.values():
            pool.start()

    def engine(self, policy: Policy) -> Engine[Prompt, int] | None:
        """Return the engine that samples from `policy`; None if sampling does not run on the cluster."""
        if "sampler" not in self.pools:
            return None
        return PlacedSampler(policy, self.pools["sampler"], rank_count())

    def reward(self, reward: Reward) -> PlacedReward | None:
        """Return the reward computed by the cluster's workers; None if it does not run on the cluster."""
        return PlacedReward(reward, self.pools["reward"]) if "reward" in self.pools else None

    @cached_property
    def stage(self) -> Stage | None:
        """The pool that runs the run's environments; None if they do not run on the cluster."""
        return PlacedStage(self.pools["environment"]) if "environment" in self.pools else None

    def metrics(self) -> dict[str, float]:
        """Return how many workers were replaced and how many pieces of work were repeated since the last call."""
        now = (sum(p.restarted for p in self.pools.values()), sum(p.redone for p in self.pools.values()))
        (restarted, redone), self._read = self._read, now
        return {RESTARTED: float(now[0] - restarted), REDONE: float(now[1] - redone)}

    def close(self) -> None:
        """End the workers and leave the cluster; may be called twice."""
        for pool in self.pools.values():
            pool.close()
        self.host.close()


def open_placement(run: ResolvedRun, device: str, *, sampling_here: bool) -> RunPlacement | None:
    """Return the workers of a run; None if it places none.

    `sampling_here` says whether this process samples for training. Where other processes do (`run.samples_apart`),
    evaluations run in the trainer itself.

    Raises:
        GrouprlError: see `RunPlacement`.
    """
    if not sampling_here or not placed_counts(run):
        return None
    placement = RunPlacement(run, device)
    placement.start()
    return placement


def close_placement(placement: RunPlacement | None) -> None:
    """Shut down the workers of a run, if it has any."""
    if placement is not None:
        placement.close()


def engine_of(run: ResolvedRun, policy: Trainable, placement: RunPlacement | None) -> Engine[Prompt, int]:
    """Return the engine that samples from a run's policy: the cluster's workers, or the configured engine.

    Without a cluster, synchronous runs complete the shares of several samplers in this process, so that a run gives
    the same results with Ray and without it.
    """
    placed = None if placement is None else placement.engine(as_policy(policy))
    if placed is not None:
        return placed
    cluster, local = run.config.cluster, run.config.sampling.engine == LOCAL
    shared = local and cluster.samplers > 1 and not run.config.run.samples_apart
    if not shared:
        return run.engine(policy)
    if current_ranks() is not None:
        return RankSampler(as_sharded(policy), cluster.samplers)
    return SharesHere(as_policy(policy), cluster.samplers)


def rank_count() -> int:
    """Return how many ranks this process leads; 1 if it is alone."""
    ranks = current_ranks()
    return 1 if ranks is None else ranks.count
