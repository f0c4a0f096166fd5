"""One step's rollout: sample, refill, replay, and record it in the prompt history.

The run's source chooses and samples prompts (`grouprl.protocols.SampleSource`); this module does the rest.
"""

from __future__ import annotations

import numpy as np

from grouprl.algorithms.stage_checks import call, of_type, one_of, rows_of
from grouprl.core.batch import SOURCES, Batch
from grouprl.orchestrator.accounting import Fates, StepRollout, dropped
from grouprl.orchestrator.context import SessionContext
from grouprl.orchestrator.synchronous import among
from grouprl.records.joining import join
from grouprl.records.prompt_history import Visit
from grouprl.records.samples import ScoredSamples, sort_by_group, subset


def collect_rollout(context: SessionContext) -> StepRollout | None:
    """Collect one step's rows; None when the method requests nothing in this step."""
    method = context.method
    refill, replay = method.refill, method.buffer
    missing = context.prompts if replay is None else one_of(replay, int, replay.fresh, context)
    limit = getattr(refill, "max_rounds", 1)
    parts: list[ScoredSamples] = []
    good: list[ScoredSamples] = []
    fates: list[Fates] = []
    for _ in range(limit):
        found = context.sample_source.round(missing)
        if found is None:
            break
        part, gone, gone_b = found
        context.set_aside(part)
        fate_b = dropped(part, asynchronous=context.sample_source.asynchronous)
        valid = subset(part, part.valid_b)
        if refill is not None and len(valid):
            laid_out = context.batch(valid)
            wanted_b = rows_of(refill, laid_out, refill.wanted, laid_out).numpy()
            fate_b[np.flatnonzero(part.valid_b)[~wanted_b]] = "refill"
            valid = subset(valid, wanted_b)
        parts.append(part if gone is None else join([part, gone]))
        fates += [fate_b, gone_b]
        good.append(valid)
        missing -= len(set(valid.ordinal_b.tolist()))
        if missing <= 0:
            break
    if not parts and replay is None:
        return None
    wanted = join(good) if good else None
    if replay is not None:
        mixed = call(replay, replay.mix, wanted, context)
        wanted = None if mixed is None else of_type(replay, ScoredSamples, mixed)
    if wanted is None:
        return None
    sampled, fate_b = (join(parts), np.concatenate(fates)) if parts else (wanted, np.full(len(wanted), "", "<U14"))
    if replay is not None:
        fate_b[(fate_b == "") & ~among(sampled, wanted)] = replay.takes
    return StepRollout(sampled, sort_by_group(wanted), len(parts), fate_b)


def remember(context: SessionContext, rollout: StepRollout, prepared: Batch | None) -> None:
    """Record the step in the prompt history and show it to the data parts.

    Only rows sampled for this step count; of an episode with several rows, the first.
    """
    sampled, wanted = rollout.sampled, rollout.wanted
    rows = sampled.valid_b & (sampled.source_b == SOURCES["sampled"])
    lengths_b = sampled.length_b
    if context.keeps_history:
        size = _mean_advantage(wanted, prepared)
        counted, ordinal_b = rows & sampled.first_b, sampled.ordinal_b
        for ordinal in dict.fromkeys(ordinal_b[counted].tolist()):
            of_group = counted & (ordinal_b == ordinal)
            visit = _visit(context.step, sampled, of_group, lengths_b, size.get(ordinal, 0.0))
            context.prompt_history.write(int(sampled.index_b[of_group][0]), visit)
    context.observe(wanted, prepared)
    if rows.any():
        total = float(sampled.rollout.entropy_bt.numpy()[rows].sum())
        known = total / lengths_b[rows].sum() if total else entropy_of(prepared)
        context.last_entropy = context.last_entropy if known is None else float(known)


def entropy_of(prepared: Batch | None) -> float | None:
    """Return the mean entropy of the sampled tokens that were trained on, as computed in training; None if there are
    none.
    """
    if prepared is None or prepared.entropy_bt is None:
        return None
    sampled_bt = prepared.mask_bt & prepared.from_source("sampled")[:, None]
    return float(prepared.entropy_bt[sampled_bt].mean()) if sampled_bt.any() else None


def _visit(step: int, sampled: ScoredSamples, rows: np.ndarray, lengths_b: np.ndarray, advantage: float) -> Visit:
    reward_b, correct_b = sampled.scores.reward_b[rows], sampled.scores.correct_b[rows]
    return Visit(
        step=step,
        completions=len(reward_b),
        right=int(correct_b.sum()),
        mean=float(reward_b.mean()),
        std=float(reward_b.std(ddof=1)) if len(reward_b) > 1 else 0.0,
        advantage=advantage,
        lengths=tuple(sorted(lengths_b[rows][correct_b].tolist())),
    )


def _mean_advantage(wanted: ScoredSamples, prepared: Batch | None) -> dict[int, float]:
    """Return the mean |advantage| of each prompt that was trained on."""
    if prepared is None:
        return {}
    adv_bt, count_b = prepared.need("advantage_bt", "the prompt history").abs(), prepared.mask_bt.sum(1)
    size_b = (adv_bt.sum(1) / count_b).double().numpy()
    groups, where_b = np.unique(wanted.ordinal_b, return_inverse=True)
    means = np.bincount(where_b, weights=size_b) / np.bincount(where_b)
    return dict(zip(groups.tolist(), means.tolist(), strict=True))
