"""What a session tells of its steps: their records, a few completions, and the rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pyarrow as pa

from grouprl.core.batch import Batch
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.core.spans import spanned
from grouprl.evaluation.sample_and_score import example_text
from grouprl.monitor.glossary import check_names
from grouprl.monitor.metrics import memory_mb, rollout_table
from grouprl.orchestrator.accounting import StepRollout
from grouprl.protocols.run_events import PhaseBegan, PhaseEnded, RolloutScored, Sample, StepEnded
from grouprl.records.samples import ScoredSamples
from grouprl.training.session import Session

SHOWN = 4
"""Completions of a step that are shown."""


@contextmanager
def phase(session: Session, name: str, total: int, done: int = 0) -> Iterator[None]:
    """Tell that a phase of `total` steps, of which `done` are made, begins, and that it ends, however it does."""
    session.announcer.tell(PhaseBegan(name, total, done))
    try:
        yield
    finally:
        session.announcer.tell(PhaseEnded(name))


@spanned("records")
def tell_step(session: Session, name: str, metrics: dict[str, float], rollout: StepRollout | None = None) -> None:
    """Tell the record of a step of a phase, with a few completions of its rollout."""
    shown = None
    if name == "train":
        shown = shown_samples(marked(session, rollout.sampled)) if rollout is not None else ()
    session.announcer.tell(StepEnded(name, session.step, record_of(session, name, metrics), shown))


@spanned("records")
def tell_rollout(session: Session, rollout: StepRollout, prepared: Batch | None) -> None:
    """Tell the rollout of a step, with advantages where rows were trained on."""
    table = partial(_table, session.step, marked(session, rollout.sampled), rollout.wanted, prepared)
    session.announcer.tell(RolloutScored(session.step, table))


def record_of(session: Session, name: str, values: dict[str, float]) -> JsonMapping:
    """Return the line of metrics.jsonl that `values` make, which nobody can change.

    Raises:
        InputError: a metric that the glossary does not explain.
    """
    seconds, session.elapsed = session.clock.step.taken, session.clock.elapsed()
    record: JsonObject = {"phase": name, "step": session.step, "seconds": round(session.elapsed, 3), **values}
    if "tokens" in values:
        record["tokens_per_second"] = round(values["tokens"] / max(seconds, 1e-9), 1)
    if name == "train":
        record["memory_mb"] = round(memory_mb(), 1)
    check_names(record)
    return MappingProxyType(record)


def marked(session: Session, samples: ScoredSamples) -> ScoredSamples:
    """Return the samples with what the run knows of its reward: a step of zeros and ones may belong to a graded one."""
    return replace(samples, scores=replace(samples.scores, graded=session.graded))


def shown_samples(samples: ScoredSamples) -> tuple[Sample, ...]:
    """Return the first completion of each of the first prompts."""
    ordinals = list(dict.fromkeys(samples.ordinal_b.tolist()))[:SHOWN]
    rows = [int((samples.ordinal_b == ordinal).argmax()) for ordinal in ordinals]
    scores = samples.scores
    return tuple(
        Sample(
            example_text(samples.examples[i]),
            samples.texts[i],
            float(scores.reward_b[i]),
            None if scores.graded else bool(scores.correct_b[i]),
        )
        for i in rows
    )


def _table(step: int, sampled: ScoredSamples, wanted: ScoredSamples, prepared: Batch | None) -> pa.Table:
    found: dict[tuple[int, int, int], list[float]] = {}
    if prepared is not None:
        values = prepared.need("advantage_bt", "the rollout record").tolist()
        rows = zip(wanted.row_keys, values, wanted.rollout.action_ids, strict=True)
        found = {key: row[: len(ids)] for key, row, ids in rows}
    return rollout_table(step, sampled, [found.get(key) for key in sampled.row_keys])
