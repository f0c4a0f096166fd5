"""The trainer's side of asynchronous sampling: it requests samples ahead and takes whole groups in the order of its
requests.

Why in order: taking whatever arrives first would train on short completions first, which would bias the policy towards
them, and a run could not be repeated. Waiting for the oldest unit costs little, since `bound` steps of other units are
in flight. Why checkpoints hold only prompts: later weights may sample completions again without exceeding the bound on
staleness, while stored completions would make every checkpoint as large as a step.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from grouprl.config.run import Config
from grouprl.core.json_types import State
from grouprl.core.stopwatch import Stopwatch
from grouprl.orchestrator.accounting import NO_ROWS, Round, StepRollout
from grouprl.orchestrator.asynchronous.admission import Admission
from grouprl.orchestrator.asynchronous.request_records import pack_request, unpack_request
from grouprl.orchestrator.asynchronous.samplers import Samplers
from grouprl.orchestrator.asynchronous.staleness import oldest_b, split, staleness_metrics
from grouprl.orchestrator.asynchronous.starvation import STARVED, Starvation
from grouprl.orchestrator.asynchronous.sync import SharedMemorySync
from grouprl.orchestrator.context import SessionContext
from grouprl.orchestrator.make_sharded_policy import model_of_whole_copy
from grouprl.orchestrator.synchronous import choose
from grouprl.protocols import WeightSync
from grouprl.records.joining import join
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples
from grouprl.rewards.judging.judge import TrajectoryJudge

if TYPE_CHECKING:
    from grouprl.protocols import Policy


def is_asynchronous(config: Config) -> bool:
    """Return whether the run samples in a separate process."""
    return config.run.async_steps > 0


class AsyncSource:
    """The prompts in flight, the samplers that complete them, and the admission control that bounds staleness.

    `begin` starts the samplers; each step then takes its groups with `round` and ends with `advance`. `say` shows a
    sentence to the user.
    """

    asynchronous = True

    def __init__(self, context: SessionContext, policy: Policy) -> None:
        self.context, self.policy, self.config = context, policy, context.config
        self.bound = self.config.run.async_steps
        self.admission = Admission(self.bound, context.prompts)
        self.starvation, self.watch = Starvation(), Stopwatch()
        self.say: Callable[[str], None] = lambda sentence: None
        self._lost: list[RolloutRequest] = []
        self._units: deque[tuple[int, list[RolloutRequest]]] = deque()
        """The units of prompts that were requested but not yet taken, in order."""
        self._arrived: dict[int, ScoredSamples] = {}
        self._next = 0
        self._gap = 0.0
        self._placed = Counter[str]()
        """Counts of events of the cluster's workers since the last step, if the samplers run on a cluster."""
        self._samplers: Samplers | None = None
        self._sync: SharedMemorySync | None = None

    def begin(self, say: Callable[[str], None]) -> None:
        """Start the samplers with the current policy, and request the first completions.

        Prompts that were in flight when the run was interrupted are requested first and sampled again, because their
        completions are gone. Nothing begins if the run has no step left.
        """
        self.say = say
        if self.context.step >= self.context.steps:
            return
        self._sync = SharedMemorySync(self.policy, self.bound + 2, self.context.row_source.canary(self.policy))
        self.admission = Admission.resumed(self.bound, self.context.prompts, self.context.step)
        self._publish(self._sync)
        reward = self.context.row_source.reward
        store = reward.store if isinstance(reward, TrajectoryJudge) else None
        model = model_of_whole_copy(self.config.model, self.policy)
        config = self.config.model_copy(update={"model": model})
        settings = {
            "config": config.model_dump(mode="json"),
            "threads": torch.get_num_threads(),
            "verdicts": None if store is None else store.folder,
            "servers": getattr(self.context.row_source.sampler, "attachment", None),
        }
        self._samplers = Samplers({**settings, **self._sync.hello()}, self._sync.memory, self.config.run.samplers)
        if self._lost:
            self.say(f"{len(self._lost)} prompts were in flight when the run was interrupted; they are sampled again")
            self._tell(self.starvation.lost(request.index for request in self._lost))
            lost, self._lost = self._lost, []
            for start in range(0, len(lost), self.context.prompts):
                self._send(lost[start : start + self.context.prompts])
        self._request(self.context.prompts)

    def round(self, count: int) -> Round | None:
        """Return the next `count` groups, none of them from exploration; None when no prompt is left.

        Rows sampled by earlier weights are marked as foreign if their old log-probs are to be recomputed.
        """
        # First the account, then the request: groups that were filtered out freed places, and what replaces them must
        # be on its way before this step begins to wait.
        self.admission.miss(count)
        self._request(count)
        parts: list[ScoredSamples] = []
        while count > 0 and self._units:
            number, requests = self._units.popleft()
            taken, rest = split(self._wait_for(number, requests), count)
            done = set(taken.ordinal_b.tolist()) if rest is not None else {request.ordinal for request in requests}
            if rest is not None:  # a unit may hold more than is missing: the others stay the first of the next step
                self._arrived[number] = rest
                self._units.appendleft((number, [request for request in requests if request.ordinal not in done]))
            parts.append(taken)
            count -= len(done)
            self.admission.settle(len(done))
        if not parts:
            return None
        return self._checked(join(parts)), None, NO_ROWS

    def advance(self, rollout: StepRollout | None) -> dict[str, float]:
        """End a step: give the samplers the new weights, request more prompts, and return the step's metrics."""
        version = self.admission.version
        metrics: dict[str, float] = {}
        if rollout is not None:
            metrics = staleness_metrics(rollout.wanted, version)
            self._fed(rollout)
        self.admission.advance()
        # Weights before requests: a sampler looks for new weights when it begins a unit, and would begin this one with
        # the old ones, a step older than they need to be.
        if self.admission.version < self.context.steps:
            assert self._sync is not None
            self._publish(self._sync)
            self._request(self.context.prompts)
        seconds = {f"seconds_{name}": value for name, value in self.watch.read().items()}
        placed = dict(self._placed)
        self._placed.clear()
        return {
            **metrics,
            **seconds,
            **placed,
            "groups_ahead": float(self.admission.running),
            "canary_gap": self._gap,
        }

    def state(self) -> State:
        """Return the prompts in flight, without their completions, for a checkpoint."""
        requests = [request for _, unit in self._units for request in unit] or self._lost
        return {
            "in_flight": {"requests": [pack_request(request) for request in requests], "lost": self.starvation.state()}
        }

    def restore(self, state: State) -> None:
        """Continue from `state` at the next `begin`."""
        own = state["in_flight" if "in_flight" in state else "ahead"]
        self._lost = [unpack_request(plain, self.context.task) for plain in own.get("requests", own.get("asks"))]
        self.starvation.restore(own["lost"])

    def close(self) -> None:
        """End the samplers' processes."""
        if self._samplers is not None:
            self._samplers.close()
            self._samplers = None
        if self._sync is not None:
            self._sync.close()
            self._sync = None

    def _publish(self, sync: WeightSync) -> None:
        """Offer the current policy to the samplers, which load it when they begin a unit."""
        with self.watch("sync"):
            sync.publish(self.admission.version, self.policy)

    def _request(self, needed: int) -> None:
        """Request as many prompts as admission control and the rest of the run allow, in whole steps once the next
        step has the `needed` ones."""
        prompts = self.context.prompts
        while room := min(self.admission.capacity, self._remaining(needed)):
            if room < prompts and self.admission.running >= needed:
                return  # units smaller than a step are sampled slower: they wait, unless this step could starve
            step = self.admission.version + self.admission.queue_position // prompts
            with self.context.at(step):
                requests = choose(self.context, min(room, prompts))
            if not requests:
                return
            self._send(requests)

    def _remaining(self, needed: int) -> int:
        """Return how many prompts the run still has to request if none is rejected."""
        later = (self.context.steps - self.admission.version - 1) * self.context.prompts
        return max(0, later + needed - self.admission.running)

    def _send(self, requests: Sequence[RolloutRequest]) -> None:
        assert self._samplers is not None
        self.admission.admit(len(requests))
        self._units.append((self._next, list(requests)))
        self._samplers.request(self._next, requests)
        self._next += 1

    def _wait_for(self, number: int, requests: Sequence[RolloutRequest]) -> ScoredSamples:
        """Return the completions of a unit, after checking all reports that arrived before them."""
        assert self._samplers is not None
        for message in self._samplers.received():
            self._hear(*message)
        start = perf_counter()
        while number not in self._arrived:
            names = ", ".join(request.example.id for request in requests[:3])
            more = f" and {len(requests) - 3} more" if len(requests) > 3 else ""
            self._hear(*self._samplers.receive(number, f"it samples and scores completions to {names}{more}", self.say))
        self.watch.seconds["wait"] += perf_counter() - start
        return self._arrived.pop(number)

    def _hear(self, kind: str, content: Any) -> None:
        if kind == "report":
            assert self._sync is not None
            self._gap = self._sync.check(content)
            return
        if kind == "said":
            self.say(content)
            return
        if kind == "placed":
            self._placed.update(content)
            return
        number, sampled, seconds = content
        self._arrived[number] = sampled
        for name, value in seconds.items():
            self.watch.seconds[name] += value

    def _checked(self, sampled: ScoredSamples) -> ScoredSamples:
        """Drop failed and late groups, and mark the rows whose old log-probs are to be recomputed."""
        sampled = self.context.row_source.counted(sampled)
        if sampled.greedy_reward_b is not None:
            sampled = replace(sampled, valid_b=sampled.valid_b & np.isfinite(sampled.greedy_reward_b))
        # A group is compared within itself, so one late row makes its whole group late.
        age_b = oldest_b(sampled, self.admission.version)
        late_b = np.isin(sampled.ordinal_b, sampled.ordinal_b[age_b > self.bound])
        foreign_b = sampled.foreign_b | ((age_b > 0) & (self.config.run.proximal == "recompute"))
        return replace(sampled, valid_b=sampled.valid_b & ~late_b, foreign_b=foreign_b)

    def _fed(self, rollout: StepRollout) -> None:
        """Record which prompts were trained on and which have lost all their completions."""
        sampled, wanted = rollout.sampled, rollout.wanted
        trained = set(sampled.ordinal_b[sampled.valid_b].tolist())
        requested = dict(zip(sampled.ordinal_b.tolist(), sampled.index_b.tolist(), strict=True))
        self.starvation.fed(wanted.index_b.tolist())
        self._tell(self.starvation.lost(index for ordinal, index in requested.items() if ordinal not in trained))

    def _tell(self, starved: Sequence[int]) -> None:
        for index in starved:
            name = self.context.task.example("train", index).id
            self.say(
                f"the prompt {name} starves: its completions failed, came late or were lost {STARVED} times in a row"
            )
