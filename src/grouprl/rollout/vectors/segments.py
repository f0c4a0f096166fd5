"""Segments of episodes over arrays as scored rows: played in lanes, or stored as trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from grouprl.envs.array_spaces import spelt, zeros
from grouprl.envs.environment import ArrayObservation, stated
from grouprl.policy.vectors.array_inputs import ArrayInputs
from grouprl.protocols import Spaces
from grouprl.records.episode_records import ENDINGS, SAMPLES, ArrayRecord, Turn
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples
from grouprl.rewards.contract import Failure
from grouprl.rewards.scoring import score
from grouprl.rollout.episode import LATE
from grouprl.rollout.row_settings import Rows, RowSettings, sample_id
from grouprl.rollout.scored_rows import scored_samples
from grouprl.rollout.vectors.array_episodes import masks_of, stacked
from grouprl.rollout.vectors.lanes import Action, Segment


def scored_segments(
    which: Rows, segments: Sequence[Segment], spaces: Spaces, settings: RowSettings, kind: torch.dtype
) -> ScoredSamples:
    """Arrange segments as scored rows with log-probs of a type; each belongs to (request, number of the completion)."""
    names = [sample_id(request.example.id, n) for request, n in which]
    verdicts = [_verdict(segment, settings.correct_at) for segment in segments]
    graded = any("correct" not in segment.components for segment in segments if segment.finished)
    scores = score(
        _stated,
        [""] * len(segments),
        [{"verdict": v} for v in verdicts],
        ids=names,
        correct_at=settings.correct_at,
    )
    total_b = np.array([segment.total for segment in segments])
    scores = replace(scores, components={**scores.components, "return": total_b}, graded=graded)
    samples = scored_samples(which, _rollout(segments, spaces, kind), scores, settings.foreign_b(which))
    return replace(
        samples,
        valid_b=scores.ok_b & np.array([bool(segment.actions) for segment in segments]),
        extras={**samples.extras, **_extras(which, segments)},
        records=tuple(ArrayRecord(s.ended, partial(_turns, s), judged=s.judged) for s in segments),
    )


def _rollout(segments: Sequence[Segment], spaces: Spaces, kind: torch.dtype) -> Rollout:
    width = max(1, *(len(segment.actions) for segment in segments))
    nothing = ArrayObservation(zeros(spaces.observation))
    idle: Action = np.asarray(zeros(spaces.action))
    states, finals = [s.states or [nothing] for s in segments], [s.final or nothing for s in segments]
    inputs = ArrayInputs.of(
        [stacked([state.values for state in each]) for each in states],
        [np.stack([np.asarray(action) for action in segment.actions or [idle]]) for segment in segments],
        origin_bta=[segment.origins for segment in segments],
        context_b=[segment.context or zeros(spaces.context) for segment in segments],
        legal_bta=[masks_of(each) for each in states],
        final_b=[each.values for each in finals],
        final_legal_ba=[each.legal for each in finals],
        seed_b=[segment.seed for segment in segments],
    )
    return Rollout(
        inputs,
        logp_bt=torch.from_numpy(padded([s.logp for s in segments], width)).to(kind),
        entropy_bt=torch.from_numpy(padded([s.entropy for s in segments], width)).to(kind),
        truncated_b=torch.tensor([segment.ended in LATE for segment in segments]),
    )


def padded(rows: Sequence[Sequence[float]], width: int) -> np.ndarray:
    """Return rows of numbers as float64 [B,width], 0 beyond their ends."""
    out_bt = np.zeros((len(rows), width))
    for row, values in enumerate(rows):
        out_bt[row, : len(values)] = values
    return out_bt


def _verdict(segment: Segment, correct_at: float) -> dict[str, float] | Failure:
    """Return the components of a segment's reward: those of its actions, and of the episode where it ends."""
    if segment.failure is not None:
        return segment.failure
    if segment.finished:
        return stated({"turn_rewards": sum(segment.rewards), **segment.components})
    return {"turn_rewards": sum(segment.rewards), "correct": 0.0}


def _stated(completion: str, *, verdict: object) -> object:
    """Return the environment's own score of a segment."""
    return verdict


def _extras(which: Rows, segments: Sequence[Segment]) -> dict[str, np.ndarray]:
    """Return the Batch fields of segments by name: each action is a turn."""
    length_b = np.array([len(segment.actions) for segment in segments])
    width = max(1, int(length_b.max()))
    mask_bt = np.arange(width) < length_b[:, None]
    ordinal_b = np.array([request.ordinal for request, _ in which], dtype=np.int64)
    number_b = np.array([number for _, number in which], dtype=np.int64)
    nobody_b = np.zeros(len(which), dtype=np.int64)
    return {
        "mask_bt": mask_bt,
        "turn_bt": np.where(mask_bt, np.arange(width), -1),
        "turn_reward_bs": padded([segment.rewards for segment in segments], width),
        "state_bs": np.full(mask_bt.shape, -1),
        "valid_bs": mask_bt,
        "agent_b": nobody_b,
        "keys.ended": np.array([ENDINGS.index(segment.ended) for segment in segments], dtype=np.int64),
        "keys.prompt": ordinal_b,
        "keys.episode": ordinal_b * SAMPLES + number_b,
        "keys.context": nobody_b,
        "keys.caller": np.full(len(which), -1),
        "keys.luck": number_b,
    }


def _turns(segment: Segment) -> tuple[Turn, ...]:
    """Return a segment as the turns that a reader sees."""
    after = [*(state.values for state in segment.states[1:]), segment.final and segment.final.values]
    turns = zip(segment.actions, segment.rewards, after, strict=False)
    return tuple(Turn(n, "", spelt(action), reward, seen=spelt(seen)) for n, (action, reward, seen) in enumerate(turns))
