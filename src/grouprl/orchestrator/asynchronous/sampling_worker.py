"""The work of the sampler's process: load weights, sample, score, send.

What its rows carry from unit to unit (environments that continue) goes to the trainer with each unit.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from grouprl.config.run import parse_config
from grouprl.core.errors import GrouprlError, InputError
from grouprl.core.json_types import State
from grouprl.orchestrator.asynchronous.resumable_sampling import Follower, following
from grouprl.orchestrator.asynchronous.staleness import with_versions
from grouprl.orchestrator.asynchronous.weights import SharedWeights
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.on_ray.placement import open_placement
from grouprl.orchestrator.resolve import resolve
from grouprl.orchestrator.reward import open_reward
from grouprl.protocols import RunSampler
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rewards.judging.judge import TrajectoryJudge
from grouprl.rewards.judging.measured import paid_reward
from grouprl.rewards.judging.pair_judge import PairJudge
from grouprl.rollout.engines import LOCAL
from grouprl.rollout.kinds.row_kinds import open_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from grouprl.orchestrator.asynchronous.sampler_canary import CanaryReport

Unit: TypeAlias = tuple[int, list[RolloutRequest]]
"""The number of a unit, and its requests."""
LOOK_SECONDS = 0.05
"""Seconds between two checks for new requests while everything waits for environments."""


def serve(wire: Connection, hello: State) -> None:
    """Complete the units that arrive over `wire`; send any error, and end the process."""
    inbox, outbox = _threads(wire)
    try:
        sampler = WorkerSampler(hello, lambda report: outbox.put(("report", report)))
        if sampler.placement is not None:
            sampler.placement.say = lambda sentence: outbox.put(("said", sentence))
        for number, sampled, idle in sampler.units(inbox):
            if sampler.placement is not None:
                outbox.put(("placed", sampler.placement.metrics()))
            outbox.put(("judged", sampler.judge_counts()))
            seconds = {**sampler.row_source.watch.read(), "sampler_idle": idle}
            outbox.put(("sampled", (number, sampled, seconds, sampler.row_source.state())))
    except InputError as error:
        outbox.put(("refused", (error.what, error.rule, error.remedy)))
    except GrouprlError as error:
        outbox.put(("failed", str(error)))
    except BaseException as error:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        outbox.put(("failed", f"the sampler failed: {type(error).__name__}: {error}\n{trace}"))
    # The reason has to be on the wire before the process ends with its threads.
    outbox.join()
    os._exit(1)


class WorkerSampler:
    """Everything that samples and scores: the policy, which follows the trainer's, the task and the reward."""

    def __init__(self, hello: State, report: Callable[[CanaryReport], None]) -> None:
        torch.set_num_threads(hello["threads"])
        config = parse_config(hello["config"])
        torch.manual_seed(config.seed)
        run = resolve(config)
        self.greedy_baseline = run.method.greedy_baseline
        policy = build_policy(run)
        untested = config.reward.model_copy(update={"self_test": False})  # the trainer has tested it
        self.placement = open_placement(run, policy.device.type, sampling_here=True)
        placed = None if self.placement is None else self.placement.reward(run.reward)
        reward, _ = open_reward(untested, run.task, verdicts=hello["verdicts"], placed=placed, pace=hello["pace"])
        weights = SharedWeights(hello["weights"], hello["places"])
        self.follower = Follower(policy, weights, report, run.row_kind.canary(policy))
        elsewhere = None if self.placement is None else self.placement.engine(policy)
        local = run.engine.name == LOCAL and elsewhere is None
        servers = hello["servers"]
        sampler: RunSampler = (
            following(self.follower, elsewhere or run.engine(policy), partial=config.run.partial)
            if servers is None
            else run.engine.attach(policy, servers)
        )
        budget, stage = run.max_new_tokens, None if self.placement is None else self.placement.stage
        task, kind = run.task, run.row_kind
        self.row_source = open_rows(
            config, task, policy, reward, budget, ErrorPolicy(), kind=kind, sampler=sampler, stage=stage
        )
        self.row_source.restore(hello["rows"])
        self._partial = config.run.partial
        overlapping = local and not self.greedy_baseline
        self._flow = self.row_source.in_flight(self._renewed, self._may_begin) if overlapping else None

    def judge_counts(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return metrics of what a judge was asked since the last call, and for a judge of pairs counts of its
        answers.
        """
        judge = paid_reward(self.row_source.reward)
        if not isinstance(judge, TrajectoryJudge | PairJudge):
            return {}, {}
        return judge.client.costs(), judge.tally.read() if isinstance(judge, PairJudge) else {}

    def units(self, inbox: queue.Queue[Unit]) -> Iterator[tuple[int, ScoredSamples, float]]:
        """Yield each unit's number, its samples, and the idle seconds before it.

        Units come in the order of their requests; with episodes, in the order in which they finish."""
        if self._flow is None:
            for number, requests, idle in _units(inbox):
                yield number, self.sample(requests), idle
            return
        idle = 0.0
        while True:
            begun = time.perf_counter()
            # It blocks only where no episode is in progress: otherwise new requests join those that are.
            while not self._flow.busy or not inbox.empty():
                self._flow.request(*inbox.get())
            idle += time.perf_counter() - begun
            for number, sampled in self._flow.advance(LOOK_SECONDS):
                yield number, with_versions(sampled, self.follower.version), idle
                idle = 0.0

    def _renewed(self, busy: bool) -> bool:
        """Load newer weights if there are any, unless an episode is in progress and samples must not span versions."""
        if not self.follower.outdated or (busy and not self._partial):
            return False
        self.follower.refresh()
        return True

    def _may_begin(self, busy: bool) -> bool:
        """Return whether episodes may begin with the current weights."""
        return not busy or not self.follower.outdated

    def sample(self, requests: Sequence[RolloutRequest]) -> ScoredSamples:
        """Sample and score the completions of `requests` with the newest weights; each token records its version."""
        self.follower.refresh()
        sampled = with_versions(self.row_source.ahead(requests), self.follower.version)
        if self.greedy_baseline:
            sampled = self.row_source.with_greedy(requests, sampled)
        return sampled


def _units(inbox: queue.Queue[Unit]) -> Iterator[tuple[int, list[RolloutRequest], float]]:
    """Yield the units in the order of their arrival, each with the seconds spent waiting for it."""
    while True:
        start = time.perf_counter()
        number, requests = inbox.get()
        yield number, requests, time.perf_counter() - start


def _threads(wire: Connection) -> tuple[queue.Queue[Unit], queue.Queue[object]]:
    """Return an inbox and an outbox, served by threads, that never block the sampling; the process ends once the
    trainer has gone."""
    inbox: queue.Queue[Unit] = queue.Queue()
    outbox: queue.Queue[object] = queue.Queue()

    def listen() -> None:
        while True:
            try:
                inbox.put(pickle.loads(wire.recv_bytes()))
            except (EOFError, OSError):
                os._exit(0)

    def speak() -> None:
        while True:
            message = outbox.get()
            try:
                wire.send_bytes(pickle.dumps(message))
            except OSError:
                os._exit(0)
            outbox.task_done()

    for work in (listen, speak):
        threading.Thread(target=work, daemon=True).start()
    return inbox, outbox
