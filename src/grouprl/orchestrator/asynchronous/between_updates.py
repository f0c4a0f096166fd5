"""Completions that the trainer samples itself, between its updates: those that are unfinished when a step has its own
continue in the next step, with its weights.

Why this pays: a step waits for its longest completion. Where completions of later steps are sampled beside those of
this one, the rows that end early leave their places to others, and the longest completion of a later step has begun
when that step does. Units are taken whole and in the order of their requests, so that the lengths of the rows that are
trained on are those of the rows that were begun.

With an engine that is repeatable to the bit the run is, too: what is sampled by which weights depends on lengths in
tokens, not on time, and a checkpoint holds the unfinished completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from grouprl.core.json_types import State
from grouprl.orchestrator.asynchronous.staleness import with_versions
from grouprl.orchestrator.asynchronous.supply import PIECES, Unit
from grouprl.orchestrator.asynchronous.unfinished import OpenSample, Prompt, extend, gathered
from grouprl.orchestrator.context import SessionContext
from grouprl.protocols import Request, Samples
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.rollout.seeds import sample_seed


@dataclass
class _Begun:
    """A unit of requests and its samples."""

    requests: Sequence[RolloutRequest]
    samples: list[OpenSample]

    @property
    def open(self) -> list[OpenSample]:
        """The samples that have not ended."""
        return [sample for sample in self.samples if sample.open]


class BetweenUpdates:
    """A `Supply` in the trainer's process, which samples by the engine of the run's rows.

    Args:
        context: the run; its rows are single completions, and its engine has the weights of the policy in training.
        version: version of these weights now.
    """

    def __init__(self, context: SessionContext, version: int) -> None:
        self.rows, self.version = context.row_source, version
        self.greedy_baseline = context.method.greedy_baseline
        self._units: dict[int, _Begun] = {}
        self._kind: np.dtype = np.dtype(np.float32)
        """The type of the engine's log-probs."""

    def publish(self, version: int) -> None:
        """Note the version of the weights, which the run has given to the engine."""
        self.version = version

    def request(self, number: int, requests: Sequence[RolloutRequest]) -> None:
        """Begin the completions of unit `number` when the next unit is taken."""
        samples = [OpenSample(request) for request in self.rows.token_requests(requests)]
        self._units[number] = _Begun(requests, samples)

    def take(self, number: int) -> ScoredSamples:
        """Return the completions of unit `number`, after sampling until they have ended; others advance with them."""
        self._units = {other: unit for other, unit in self._units.items() if other >= number}
        unit = self._units[number]
        with self.rows.watch("rollout"):
            while unit.open:
                self._advance(unit)
        samples = gathered(unit.samples, self._kind, exact=self.rows.sampler.exact)
        scored = with_versions(self.rows.scored_rows(unit.requests, samples), self.version)
        return self.rows.with_greedy(unit.requests, scored) if self.greedy_baseline else scored

    def metrics(self) -> dict[str, float]:
        """Return nothing: the rows' own watch has the seconds."""
        return {}

    def state(self, units: Sequence[Unit]) -> State:
        """Return what was sampled for `units`."""
        begun = [[sample.state() for sample in self._units[number].samples] for number, _ in units]
        return {"samples": begun, "kind": self._kind.name}

    def restore(self, units: Sequence[Unit], state: State) -> None:
        """Continue with `units`, as `state` has them."""
        self._kind = np.dtype(state["kind"])
        for (number, requests), begun in zip(units, state["samples"], strict=True):
            asked = self.rows.token_requests(requests)
            samples = [OpenSample.continued(request, each) for request, each in zip(asked, begun, strict=True)]
            self._units[number] = _Begun(requests, samples)

    def close(self) -> None:
        """Do nothing: no process runs."""

    def _advance(self, unit: _Begun) -> None:
        """Sample further tokens of all samples, until those of `unit` have ended if the engine can be paused then."""
        going = [sample for each in self._units.values() for sample in each.open]
        part = self._until(going, unit) if type(self.rows.sampler) is LocalSampler else self._piece(going)
        self._kind = part.logp_bt.dtype
        extend(going, part, self.version)

    def _until(self, going: Sequence[OpenSample], unit: _Begun) -> Samples[int]:
        sampler = self.rows.sampler
        assert isinstance(sampler, LocalSampler)
        # The rest of a sample keeps its seed, so the seed tells whose rest a request is.
        needed = {sample.request.seed for sample in unit.open}
        rests = [sample.rest for sample in going]
        return sampler.sample_until(rests, lambda rows: needed.isdisjoint(row.seed for row in rows))

    def _piece(self, going: Sequence[OpenSample]) -> Samples[int]:
        """Sample at most a piece of each, with a seed of its own, as servers cannot continue the numbers of a seed."""
        longest = max(sample.request.budget for sample in going)
        rests = [sample.rest for sample in going]
        pieces = [
            replace(rest, budget=min(rest.budget, ceil(longest / PIECES)), sampled=0, seed=_seed_of(rest))
            for rest in rests
        ]
        return self.rows.sampler.sample(pieces)


def _seed_of(rest: Request[Prompt]) -> int:
    """Return the seed of the piece of a sample that `rest` begins."""
    return sample_seed("piece", rest.seed, rest.sampled, 0) if rest.sampled else rest.seed
