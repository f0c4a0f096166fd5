"""What the sampler's process does: take weights, sample, score, send; nothing is remembered from unit to unit."""

from __future__ import annotations

import os
import pickle
import queue
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from grouprl.config.run import parse_config
from grouprl.core.errors import GrouprlError, InputError
from grouprl.orchestrator.asynchronous.resumable_sampling import Follower, Following, InFlight
from grouprl.orchestrator.asynchronous.weights import NONE, SharedWeights
from grouprl.orchestrator.build import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.orchestrator.reward import open_reward
from grouprl.protocols import Sampler
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.collector import Collector
from grouprl.rollout.engines import LOCAL


def serve(wire: Any, hello: dict[str, Any]) -> None:
    """Complete the units that come over `wire`; what goes wrong is sent and ends the process."""
    inbox, outbox = _threads(wire)
    try:
        sampler = WorkerSampler(hello, lambda report: outbox.put(("report", report)))
        for number, requests, idle in _units(inbox):
            sampled = sampler.sample(requests)
            seconds = {**sampler.collector.watch.read(), "sampler_idle": idle}
            outbox.put(("sampled", (number, sampled, seconds)))
    except InputError as error:
        outbox.put(("refused", (error.what, error.rule, error.remedy)))
    except GrouprlError as error:
        outbox.put(("failed", str(error)))
    except BaseException as error:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        outbox.put(("failed", f"the sampler failed: {type(error).__name__}: {error}\n{trace}"))
    outbox.join()
    os._exit(1)


class WorkerSampler:
    """Everything that samples and scores: the policy, which follows the trainer's, the task and the reward."""

    def __init__(self, hello: dict[str, Any], report: Any) -> None:
        torch.set_num_threads(hello["threads"])
        config = parse_config(hello["config"])
        torch.manual_seed(config.seed)
        run = resolve(config)
        self.greedy_baseline = run.method.greedy_baseline
        policy = build_policy(run)
        reward, _ = open_reward(config.reward.model_copy(update={"self_test": False}), run.task)
        self.follower = Follower(policy, SharedWeights(hello["weights"], hello["places"]), report)
        local = run.engine.name == LOCAL
        sampler: Sampler[Any, int] = (
            InFlight(self.follower, partial=config.run.partial)
            if local
            else Following(self.follower, run.engine(policy))
        )
        self.collector = Collector(config, policy, reward, run.max_new_tokens, ErrorPolicy(), run.task, sampler)

    def sample(self, requests: Sequence[RolloutRequest]) -> ScoredSamples:
        """Sample and score the completions of `requests` with the newest weights; tokens carry the version that sampled
        them."""
        self.follower.refresh()
        before = self.follower.version
        sampled = self.collector.sample(requests, count_failures=False)
        acted_bt = sampled.acted_bt
        known_bt = sampled.rollout.version_bt  # None for episodes: each has the weights that it began with
        version_bt = np.full(acted_bt.shape, before) if known_bt is None else known_bt.numpy()
        sampled = sampled.with_extras(version_bt=np.where(acted_bt, version_bt[:, : acted_bt.shape[1]], NONE))
        if self.greedy_baseline:
            sampled = replace(sampled, greedy_reward_b=self.collector.greedy_reward(requests, sampled.group_b))
        return sampled


def _units(inbox: queue.Queue[Any]) -> Iterator[tuple[int, list[RolloutRequest], float]]:
    """Yield the units in the order in which they came, each with the seconds waited for it."""
    while True:
        start = time.perf_counter()
        number, requests = inbox.get()
        yield number, requests, time.perf_counter() - start


def _threads(wire: Any) -> tuple[queue.Queue[Any], queue.Queue[Any]]:
    """Return an inbox and an outbox that never keep the sampling waiting; the process ends when the trainer has
    gone."""
    inbox: queue.Queue[Any] = queue.Queue()
    outbox: queue.Queue[Any] = queue.Queue()

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
