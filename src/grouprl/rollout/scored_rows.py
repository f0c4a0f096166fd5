"""The assembly of scored rows, for sources of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from grouprl.records.examples import Prompt
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples
from grouprl.records.scores import Scores
from grouprl.records.text_samples import TextSamples
from grouprl.rollout.row_settings import Rows, sample_id

GREEDY_TOKENS = "past.greedy_tokens"
"""Column of `ScoredSamples.extras`: [B] int64, the length of the greedy completion to the row's prompt."""
CUT_TOKENS = "past.cut_tokens"
"""Column of `ScoredSamples.extras`: [B] int64, how many tokens of a stored row were cut; absent if none were."""


def scored_samples(rows: Rows, rollout: Rollout, scores: Scores, foreign_b: np.ndarray) -> ScoredSamples:
    """Assemble scored rows; each belongs to (request, number of the completion)."""
    names = list(dict.fromkeys(name for request, _ in rows for name in request.keys))
    columns = {f"keys.{n}": np.array([request.keys.get(n, 0) for request, _ in rows], dtype=np.int64) for n in names}
    return ScoredSamples(
        examples=tuple(request.example for request, _ in rows),
        group_b=np.array([request.ordinal for request, _ in rows], dtype=np.int64),
        index_b=np.array([request.index for request, _ in rows], dtype=np.int64),
        sample_b=np.array([n for _, n in rows], dtype=np.int64),
        rollout=rollout,
        scores=scores,
        valid_b=scores.ok_b,
        source_b=np.array([request.source for request, _ in rows], dtype=np.int64),
        foreign_b=foreign_b,
        extras=columns,
    )


def with_texts(samples: ScoredSamples, prompts: Sequence[Prompt], texts: Sequence[str]) -> TextSamples:
    """Return the rows with the prompts that they were shown and the texts that were written."""
    columns = {each.name: getattr(samples, each.name) for each in fields(samples)}
    return TextSamples(**{**columns, "prompts": tuple(prompts), "texts": tuple(texts)})


def reward_of_groups(greedy: ScoredSamples, group_b: np.ndarray) -> np.ndarray:
    """Return the reward [B] of the single completion of each row's group in `greedy`; NaN where there is none."""
    found = dict(zip(greedy.group_b.tolist(), greedy.scores.reward_b.tolist(), strict=True))
    return np.array([found.get(group, np.nan) for group in group_b.tolist()])


def names_of(rows: Rows) -> list[str]:
    """Return the name of each row in messages and records of failures."""
    return [sample_id(request.example.id, number) for request, number in rows]
