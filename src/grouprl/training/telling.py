"""Events of a session's steps: their records, a few completions, and the rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import isnan, nan
from types import MappingProxyType

import pyarrow as pa
import torch
from torch import Tensor

from grouprl.core.batch import Batch
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.core.spans import spanned
from grouprl.evaluation.sample_and_score import example_text
from grouprl.monitor.glossary import check_names
from grouprl.monitor.metrics import PerRow, memory_mb, rollout_table, unjudged_b
from grouprl.orchestrator.accounting import StepRollout
from grouprl.protocols.run_events import PhaseBegan, PhaseEnded, RolloutScored, Sample, StepEnded
from grouprl.records.samples import ScoredSamples
from grouprl.training.measures.gap_record import GapRecord
from grouprl.training.measures.score_record import ScoreRecord
from grouprl.training.measures.update_record import UpdateRecord
from grouprl.training.session import Session

SHOWN = 4
"""Number of completions of a step that are shown."""


@contextmanager
def phase(session: Session, name: str, total: int, done: int = 0) -> Iterator[None]:
    """Announce the beginning of a phase of `total` steps, `done` of them made, and its end, also after an error."""
    session.announcer.tell(PhaseBegan(name, total, done))
    try:
        yield
    finally:
        session.announcer.tell(PhaseEnded(name))


@spanned("records")
def tell_step(session: Session, name: str, metrics: dict[str, float], rollout: StepRollout | None = None) -> None:
    """Announce the record of a step of a phase, with a few completions of its rollout."""
    shown = None
    if name == "train":
        shown = shown_samples(marked(session, rollout.sampled)) if rollout is not None else ()
    session.announcer.tell(StepEnded(name, session.step, record_of(session, name, metrics), shown))


@spanned("records")
def tell_rollout(
    session: Session,
    rollout: StepRollout,
    prepared: Batch | None,
    record: UpdateRecord | ScoreRecord | GapRecord | None = None,
) -> None:
    """Announce the rollout of a step, with advantages of rows that were trained on, and what updates saw."""
    table = partial(_table, session.step, marked(session, rollout.sampled), rollout.wanted, prepared, record)
    session.announcer.tell(RolloutScored(session.step, table))


def record_of(session: Session, name: str, values: dict[str, float]) -> JsonMapping:
    """Return the read-only record of a step for metrics.jsonl, with the metrics `values`.

    Raises:
        InputError: a metric is not in the glossary.
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
    """Return the samples marked as graded if the run's reward is; a single step may show only zeros and ones."""
    return replace(samples, scores=replace(samples.scores, graded=session.graded))


def shown_samples(samples: ScoredSamples) -> tuple[Sample, ...]:
    """Return the first completion of each of the first prompts."""
    ordinals = list(dict.fromkeys(samples.ordinal_b.tolist()))[:SHOWN]
    rows = [int((samples.ordinal_b == ordinal).argmax()) for ordinal in ordinals]
    scores, open_b = samples.scores, unjudged_b(samples)
    return tuple(
        Sample(
            example_text(samples.examples[i]),
            samples.transcript(i),
            float(scores.reward_b[i]),
            None if scores.graded or open_b[i] else bool(scores.correct_b[i]),
        )
        for i in rows
    )


def _table(
    step: int,
    sampled: ScoredSamples,
    wanted: ScoredSamples,
    prepared: Batch | None,
    record: UpdateRecord | ScoreRecord | GapRecord | None,
) -> pa.Table:
    known = None if prepared is None else prepared.need("advantage_bt", "the rollout record")
    advantage, log_ratio = (_by_row(sampled, wanted, each_bt) for each_bt in (known, _log_ratio(prepared)))
    updates: dict[str, PerRow] = {}
    scores: dict[str, list[float | None]] = {}
    if isinstance(record, UpdateRecord):
        updates = {name: _by_row(sampled, wanted, value_bt) for name, value_bt in record.tokens().items()}
        updates["gradient"] = [None if x is None else [x] for x in _of_rows(sampled, wanted, record.shares())]
    elif isinstance(record, ScoreRecord):
        named = {"": record.score(), **record.named()}
        scores = {name: _of_rows(sampled, wanted, value_b) for name, value_b in named.items()}
    if (gap_b := _gaps(prepared, wanted, record)) is not None:
        updates["gap"] = [None if x is None else [x] for x in _of_rows(sampled, wanted, gap_b)]
    return rollout_table(step, sampled, advantage, log_ratio, updates, scores)


def _gaps(
    prepared: Batch | None, wanted: ScoredSamples, record: UpdateRecord | ScoreRecord | GapRecord | None
) -> Tensor | None:
    """Return how far sampler and trainer differ about each row, [B], as the step began or in its first update; None
    where no policy is trained.
    """
    if prepared is None or prepared.behavior_bt is None:
        return None
    if wanted.rollout.exact or prepared.old_bt is None:
        gaps = record.gaps if isinstance(record, UpdateRecord) else record
        return gaps.gap_b if isinstance(gaps, GapRecord) else None
    gap_bt = (prepared.behavior_bt - prepared.old_bt).abs().where(prepared.mask_bt, 0)
    return (gap_bt.sum(1) / prepared.mask_bt.sum(1).clamp(min=1)).double()


def _of_rows(sampled: ScoredSamples, wanted: ScoredSamples, value_b: Tensor) -> list[float | None]:
    """Return the values [B] of the wanted rows for each sampled row; None for the others, and for NaN."""
    found = dict(zip(wanted.row_keys, value_b.tolist(), strict=True))
    return [None if isnan(found.get(key, nan)) else found[key] for key in sampled.row_keys]


def _log_ratio(prepared: Batch | None) -> Tensor | None:
    """Return log π/π_ref of each token as the step began, [B,T], if both are known."""
    if prepared is None or prepared.old_bt is None or prepared.ref_bt is None:
        return None
    return torch.where(prepared.mask_bt, prepared.old_bt - prepared.ref_bt, 0)


def _by_row(sampled: ScoredSamples, wanted: ScoredSamples, value_bt: Tensor | None) -> list[list[float] | None]:
    """Return the values [B,T] of the wanted rows, cut to their tokens, for each sampled row; None for the others."""
    if value_bt is None:
        return [None] * len(sampled)
    rows = zip(wanted.row_keys, value_bt.tolist(), wanted.rollout.action_ids, strict=True)
    found = {key: row[: len(ids)] for key, row, ids in rows}
    return [found.get(key) for key in sampled.row_keys]
