"""Metrics of a step in addition to those of its update: counts of samples and their use, and engine reports."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from grouprl.core.batch import Batch
from grouprl.monitor.metrics import sample_metrics
from grouprl.monitor.scored_twice import both_scores, sampled_twice, twice_metrics
from grouprl.orchestrator.accounting import NO_ROWS, SampledCounts, StepRollout, account
from grouprl.orchestrator.step import entropy_of
from grouprl.rollout.engines import engine_metrics
from grouprl.rollout.rescoring import scored_again
from grouprl.rollout.scored_rows import GREEDY_TOKENS
from grouprl.training.session import Session


def add_engine_metrics(session: Session, metrics: dict[str, float]) -> None:
    """Add the reports of the sampler and the cluster: counts and seconds are summed, of gaps the largest is kept."""
    for name, value in engine_metrics(session.sampler).items():
        before = metrics.get(name, 0.0)
        metrics[name] = max(before, value) if name == "canary_gap" else before + value
    metrics |= {} if session.placement is None else session.placement.metrics()


def rollout_metrics(
    session: Session, rollout: StepRollout, prepared: Batch | None, known: Mapping[str, float]
) -> dict[str, float]:
    """Return the metrics of the sampled completions; their entropy only if it is not among the `known` ones."""
    metrics = dict(sample_metrics(rollout.sampled, compared=compared(session)))
    if "entropy" not in {**known, **metrics} and (entropy := entropy_of(prepared)) is not None:
        metrics["entropy"] = entropy
    if session.method.refill is not None:
        metrics["refill_rounds"] = float(rollout.rounds)
    return metrics


def compared(session: Session) -> bool:
    """Return whether rows of a prompt are to be compared: not where they are pieces of what one environment shows."""
    return session.config.batch.group_size > 1 or session.task.actions_per_step is None


def twice_scored(session: Session, rollout: StepRollout) -> dict[str, float]:
    """Return how often completions that were scored twice, by chance or by `reward.rescore`, got two scores."""
    sampled, settings = rollout.sampled, session.config.reward
    pairs = sampled_twice(sampled)
    if settings.rescore and len(sampled):
        before, again = scored_again(session.reward, sampled, settings.rescore, settings.correct_at)
        pairs += both_scores(before, again)
    return twice_metrics(pairs)


def account_step(
    session: Session, requested: range, rollout: StepRollout | None, prepared: Batch | None
) -> dict[str, float]:
    """Count what became of the prompts sampled in this step, or of those that arrived if they are requested ahead."""
    asynchronous, counts = session.context.sample_source.asynchronous, session.context.read_sampled_counts()
    if rollout is None:
        return account(() if asynchronous else requested, None, NO_ROWS, None, None, counts)
    if asynchronous:
        counts = _arrived(rollout)
    sampled = rollout.sampled if rollout.rounds else None
    ordinals = set(rollout.sampled.ordinal_b.tolist()) if asynchronous else requested
    return account(ordinals, sampled, rollout.fate_b if rollout.rounds else NO_ROWS, rollout.wanted, prepared, counts)


def _arrived(rollout: StepRollout) -> SampledCounts:
    """Return the counts of this step's rows, which other processes sampled."""
    counts = SampledCounts()
    counts.add(rollout.sampled)
    if rollout.sampled.greedy_reward_b is not None:
        _, first_b = np.unique(rollout.sampled.ordinal_b, return_index=True)
        counts.add_unnamed(rollout.sampled.extras[GREEDY_TOKENS][first_b].tolist())
    return counts
