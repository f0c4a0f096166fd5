"""The source that samples for each step when the step is due: choose prompts, sample completions, explore.

A stage without a part has a default: prompts in order, and the same number of completions for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grouprl.algorithms.stage_checks import all_of, one_of
from grouprl.core.errors import RunError
from grouprl.core.json_types import State
from grouprl.orchestrator.accounting import NO_ROWS, Round, dropped
from grouprl.orchestrator.context import SessionContext
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, subset
from grouprl.rollout.scored_rows import reward_of_groups


class Synchronous:
    """A `grouprl.protocols.SampleSource` with nothing in flight between steps."""

    asynchronous = False

    def __init__(self, context: SessionContext) -> None:
        self.context = context

    def begin(self, say: Callable[[str], None]) -> None:
        """Do nothing: there is nothing to prepare."""

    def round(self, count: int) -> Round | None:
        """Sample completions of `count` prompts; None when no prompt is left."""
        context = self.context
        requests = choose(context, count) if count > 0 else []
        if not requests:
            return None
        samples = context.sample(requests)
        if context.method.greedy_baseline:
            samples = _with_greedy(context, requests, samples)
        plain, fate_b = samples, dropped(samples)
        for part in context.method.augment:
            samples = one_of(part, ScoredSamples, part, samples, context)
            if not len(samples):
                raise RunError(f"{part.name} left no row of {len(requests)} prompts; a step needs at least one")
            fate_b[(fate_b == "") & ~among(plain, samples)] = part.takes
        gone_b = ~among(plain, samples)
        return (samples, subset(plain, gone_b), fate_b[gone_b]) if gone_b.any() else (samples, None, NO_ROWS)

    def advance(self, step: object) -> dict[str, float]:
        """End a step; return no metrics."""
        return {}

    def state(self) -> State:
        """Return an empty state: nothing is in flight between steps."""
        return {}

    def restore(self, state: Mapping[str, object]) -> None:
        """Do nothing: nothing was in flight."""

    def close(self) -> None:
        """Do nothing: nothing is running."""


def choose(context: SessionContext, count: int) -> Sequence[RolloutRequest]:
    """Choose `count` prompts and how their completions are sampled; fewer if prompts run out."""
    method = context.method
    curriculum, allocation, sampling = method.curriculum, method.allocation, method.sampling
    requests: Sequence[RolloutRequest] = (
        context.take(count)
        if curriculum is None
        else all_of(curriculum, RolloutRequest, curriculum.choose, count, context)
    )
    if allocation is not None:
        allotted = all_of(allocation, RolloutRequest, allocation.allot, requests, context)
        requests = [request for request in allotted if request.completions > 0]
    requests = [request for request in requests if context.source.aside.allows(request.index)]
    return requests if sampling is None else all_of(sampling, RolloutRequest, sampling.adjust, requests, context)


def among(rows: ScoredSamples, others: ScoredSamples) -> NDArray[np.bool_]:
    """Return [B] bool: the rows of `rows` that are also among `others`."""
    there = set(others.row_keys)
    return np.array([key in there for key in rows.row_keys], dtype=bool)


def _with_greedy(context: SessionContext, requests: Sequence[RolloutRequest], samples: ScoredSamples) -> ScoredSamples:
    greedy = context.sample(requests, greedy=True, count_failures=False)
    reward_b = reward_of_groups(greedy, samples.group_b)
    return replace(samples, greedy_reward_b=reward_b, valid_b=samples.valid_b & np.isfinite(reward_b))
