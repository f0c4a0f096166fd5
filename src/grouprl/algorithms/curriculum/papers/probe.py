"""Probes: completions sampled only to measure prompts. They are scored, counted and never trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grouprl.algorithms.data_part import RunContext
from grouprl.records.joining import join
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, subset


def probe(context: RunContext, requests: Sequence[RolloutRequest], *, greedy: bool = False) -> ScoredSamples:
    """Sample the completions of `requests` (or one greedy completion each) in batches; return those that could be
    scored.
    """
    width = context.prompts * context.group_size
    per_request = 1 if greedy else max(1, max(request.completions for request in requests))
    size = max(1, width // per_request)
    pieces = [requests[start : start + size] for start in range(0, len(requests), size)]
    sampled = join([context.sample(piece, greedy=greedy, count_failures=False) for piece in pieces])
    context.note("completions_probed", len(sampled))
    return subset(sampled, sampled.scores.ok_b)


def probe_prompts(context: RunContext, indices: Sequence[int], completions: int) -> ScoredSamples:
    """Sample `completions` completions of each of the training prompts `indices`."""
    return probe(context, [replace(context.request(int(index)), completions=completions) for index in indices])


def rows_of(key_b: np.ndarray) -> dict[int, np.ndarray]:
    """Return the rows of each value of `key_b` [B], values in order of first occurrence."""
    return {key: np.flatnonzero(key_b == key) for key in dict.fromkeys(key_b.tolist())}


def right_share(samples: ScoredSamples, key_b: np.ndarray) -> dict[int, float]:
    """Return the share of correct completions for each value of `key_b` [B]."""
    return {key: float(samples.scores.correct_b[rows].mean()) for key, rows in rows_of(key_b).items()}
