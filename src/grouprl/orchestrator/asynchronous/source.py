"""The trainer's side of asynchronous sampling: it requests samples ahead and takes whole groups in the order of its
requests.

Why in order: taking whatever arrives first would train on short completions first, which would bias the policy towards
them, and a run could not be repeated. Waiting for the oldest unit costs little, since `bound` steps of other units are
in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from grouprl.config.run import Config
from grouprl.core.json_types import State
from grouprl.orchestrator.accounting import NO_ROWS, Round, StepRollout
from grouprl.orchestrator.asynchronous.admission import Admission
from grouprl.orchestrator.asynchronous.between_updates import BetweenUpdates
from grouprl.orchestrator.asynchronous.request_records import pack_request, unpack_request
from grouprl.orchestrator.asynchronous.sampler_supply import SamplerSupply
from grouprl.orchestrator.asynchronous.staleness import oldest_b, split, staleness_metrics
from grouprl.orchestrator.asynchronous.starvation import STARVED, Starvation
from grouprl.orchestrator.asynchronous.supply import Supply
from grouprl.orchestrator.context import SessionContext
from grouprl.orchestrator.synchronous import choose
from grouprl.records.joining import join
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples
from grouprl.records.serialize import pack, unpack

if TYPE_CHECKING:
    from grouprl.protocols import Policy


def is_asynchronous(config: Config) -> bool:
    """Return whether completions may be older than the weights they are trained with."""
    return config.run.async_steps > 0


class AsyncSource:
    """The prompts in flight, the supply that completes them, and the admission control that bounds staleness.

    `begin` opens the supply; each step then takes its groups with `round` and ends with `advance`. `say` shows a
    sentence to the user.
    """

    asynchronous = True

    def __init__(self, context: SessionContext, policy: Policy) -> None:
        self.context, self.policy, self.config = context, policy, context.config
        self.bound = self.config.run.async_steps
        self.admission = Admission(self.bound, context.prompts)
        self.starvation = Starvation()
        self.say: Callable[[str], None] = lambda sentence: None
        self._kept: State = {"requests": [], "lost": {}}
        """The state that the next `begin` continues from, as a checkpoint has it."""
        self._lost: list[RolloutRequest] = []
        """The requests of that state."""
        self._units: deque[tuple[int, list[RolloutRequest]]] = deque()
        """The units of prompts that were requested but not yet taken, in order."""
        self._rest: dict[int, ScoredSamples] = {}
        """Samples of the first unit, by its number, that an earlier step left over: they are scored, with the greedy
        completions of that step, and stay as they are."""
        self._next = 0
        self._supply: Supply | None = None

    @property
    def supply(self) -> Supply:
        """The supply that completes the requests, once `begin` has opened it."""
        assert self._supply is not None
        return self._supply

    def begin(self, say: Callable[[str], None]) -> None:
        """Open the supply with the current policy, and request the first completions.

        Prompts that were in flight when the run was interrupted come first: their completions continue if the
        checkpoint has them, otherwise they are sampled again. Nothing begins if the run has no step left.
        """
        self.say = say
        if self.context.step >= self.context.steps:
            return
        self.admission = Admission.resumed(self.bound, self.context.prompts, self.context.step)
        version = self.admission.version
        self._supply = (
            SamplerSupply(self.context, self.policy, version, say)
            if self.config.run.samplers
            else BetweenUpdates(self.context, version)
        )
        if "units" in self._kept:
            self._continue(self._lost, self._kept)
        elif self._lost:
            self._again(self._lost)
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
            taken, rest = split(self._rest.pop(number) if number in self._rest else self.supply.take(number), count)
            done = set(taken.ordinal_b.tolist()) if rest is not None else {request.ordinal for request in requests}
            if rest is not None:  # a unit may hold more than is missing: the others stay the first of the next step
                self._rest[number] = rest
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
            self.supply.publish(self.admission.version)
            self._request(self.context.prompts)
        return {**metrics, **self.supply.metrics(), "groups_ahead": float(self.admission.running)}

    def state(self) -> State:
        """Return the prompts in flight, with their completions so far if the supply can continue them."""
        if self._supply is None:
            return {"in_flight": self._kept}
        requests = [pack_request(request) for _, unit in self._units for request in unit]
        plain: State = {"requests": requests, "lost": self.starvation.state()}
        begun = self._supply.state([unit for unit in self._units if unit[0] not in self._rest])
        if begun:
            admission = {"accepted": self.admission.accepted, "running": self.admission.running}
            plain |= {"units": [len(unit) for _, unit in self._units], "begun": begun, "admission": admission}
            plain |= {"rest": [pack(samples) for samples in self._rest.values()]}
        return {"in_flight": plain}

    def restore(self, state: State) -> None:
        """Continue from `state` at the next `begin`."""
        self._kept = state["in_flight" if "in_flight" in state else "ahead"]
        plain = self._kept["requests" if "requests" in self._kept else "asks"]
        self._lost = [unpack_request(each, self.context.task) for each in plain]
        self.starvation.restore(self._kept["lost"])

    def close(self) -> None:
        """Close the supply; what is in flight stays in `state`, for the checkpoint of a run that ends."""
        if self._supply is not None:
            self._supply.close()

    def _again(self, lost: Sequence[RolloutRequest]) -> None:
        """Request prompts again whose completions are gone."""
        self.say(f"{len(lost)} prompts were in flight when the run was interrupted; they are sampled again")
        self._tell(self.starvation.lost(request.index for request in lost))
        for start in range(0, len(lost), self.context.prompts):
            self._send(lost[start : start + self.context.prompts])

    def _continue(self, lost: Sequence[RolloutRequest], kept: State) -> None:
        """Continue the completions that the checkpoint has, as if the run had not been interrupted."""
        requests = iter(lost)
        self._units.extend((number, [next(requests) for _ in range(size)]) for number, size in enumerate(kept["units"]))
        self._next = len(self._units)
        self.admission = replace(self.admission, **kept["admission"])
        self._rest = {number: unpack(rows, self.context.task) for number, rows in enumerate(kept.get("rest", ()))}
        self.supply.restore([unit for unit in self._units if unit[0] not in self._rest], kept["begun"])

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
        self.admission.admit(len(requests))
        self._units.append((self._next, list(requests)))
        self.supply.request(self._next, requests)
        self._next += 1

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
