"""Rows of the present step as a store keeps them, and stored rows beside new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from grouprl.algorithms.augment.resampling import sampled_rows
from grouprl.algorithms.data_part import RunContext
from grouprl.core.batch import Batch
from grouprl.records.joining import join
from grouprl.records.samples import ScoredSamples, subset


def own_rows(samples: ScoredSamples, prepared: Batch) -> tuple[ScoredSamples, np.ndarray]:
    """Return the rows sampled for this step under the policy's own log-probs, and which of `samples` they are."""
    where = np.flatnonzero(sampled_rows(samples))
    rows = subset(samples, where)
    if not rows.foreign_b.any():
        return rows, where
    width, old_bt = prepared.size[1], prepared.need("old_bt", "a replay store")[torch.from_numpy(where)]
    foreign_b, logp_bt = torch.from_numpy(rows.foreign_b), rows.rollout.logp_bt[:, :width].clone()
    logp_bt[foreign_b] = old_bt[foreign_b].to(logp_bt)
    rollout = replace(rows.rollout, logp_bt=logp_bt, entropy_bt=rows.rollout.entropy_bt[:, :width])
    return replace(rows, rollout=rollout, foreign_b=np.zeros(len(rows), dtype=bool)), where


def joined(
    samples: ScoredSamples | None, stored: Sequence[ScoredSamples], steps: Sequence[int], context: RunContext
) -> ScoredSamples:
    """Append stored rows to the new ones and log their share and their age; `steps` holds the step of each block."""
    old = [block.with_source("replay") for block in stored]
    rows = sum(len(block) for block in old)
    whole = rows + (0 if samples is None else len(samples))
    context.note("replayed_fraction", rows / max(1, whole))
    if rows:
        ages = [(context.step - step) * len(block) for step, block in zip(steps, old, strict=True)]
        context.note("replay_age", sum(ages) / rows)
    return join([*([] if samples is None else [samples]), *old])
