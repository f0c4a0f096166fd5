"""Completions whose reward was computed twice: sampled twice in their group, or scored once more."""

from __future__ import annotations

from math import isclose

from grouprl.records.samples import ScoredSamples
from grouprl.records.scores import Scores

Pair = tuple[float, float]
"""Two scores of one completion."""


def sampled_twice(samples: ScoredSamples) -> list[Pair]:
    """Return the scores of completions that occur more than once in their group, each beside that of the first
    occurrence.

    Only completions of one group are compared, because a reward may depend on the group. Episodes are left out: their
    environments may differ.
    """
    first: dict[tuple[int, tuple[int, ...]], float] = {}
    pairs: list[Pair] = []
    for row in range(0 if samples.records is not None else len(samples)):
        if not samples.scores.ok_b[row]:
            continue
        reward, key = (
            float(samples.scores.reward_b[row]),
            (int(samples.group_b[row]), (*samples.rollout.action_ids[row],)),
        )
        if key in first:
            pairs.append((first[key], reward))
        first.setdefault(key, reward)
    return pairs


def both_scores(before: Scores, again: Scores) -> list[Pair]:
    """Return both scores of each row that has two."""
    both_b = before.ok_b & again.ok_b
    return list(zip(before.reward_b[both_b].tolist(), again.reward_b[both_b].tolist(), strict=True))


def twice_metrics(pairs: list[Pair]) -> dict[str, float]:
    """Return the share of pairs that differ, and their number; empty if there are none."""
    if not pairs:
        return {}
    differ = sum(not isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) for one, other in pairs)
    return {"verifier_noise": differ / len(pairs), "scored_twice": float(len(pairs))}
