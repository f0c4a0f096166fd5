"""Several collections of scored rows as one, and what rows mean that lack a column which others have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from grouprl.core.edges import joined
from grouprl.protocols import NO_VERSION
from grouprl.records.episode_records import ENDINGS, SAMPLES, Record
from grouprl.records.rollout import Rollout
from grouprl.records.samples import Rows, ScoredSamples
from grouprl.records.scores import Scores

if TYPE_CHECKING:
    from torch import Tensor

ENDED = ("truncated", "terminated")
"""Endings of a row that the limit of tokens cut, and of one that ended by itself."""
UNSAID: Mapping[str, Callable[[ScoredSamples], np.ndarray]] = {
    "mask_bt": lambda rows: rows.acted_bt,
    "loss_mask_bt": lambda rows: rows.acted_bt,
    "turn_bt": lambda rows: np.where(rows.acted_bt, 0, -1),
    "version_bt": lambda rows: np.full(rows.acted_bt.shape, NO_VERSION),
    "turn_reward_bs": lambda rows: np.nan_to_num(rows.scores.reward_b)[:, None],
    "state_bs": lambda rows: np.full((len(rows), 1), -1),
    "valid_bs": lambda rows: np.ones((len(rows), 1), dtype=bool),
    "stat_b": lambda rows: np.ones(len(rows), dtype=bool),
    "keys.prompt": lambda rows: rows.ordinal_b,
    "keys.episode": lambda rows: rows.ordinal_b * SAMPLES + rows.sample_b,
    "keys.caller": lambda rows: np.full(len(rows), -1),
    "keys.luck": lambda rows: rows.sample_b,
    "keys.ended": lambda rows: np.where(rows.rollout.truncated_b.numpy(), *map(ENDINGS.index, ENDED)),
}
"""The columns whose absence does not mean zero, as rows without them have them: one turn, wholly the policy's own, in
the loss and in the statistics, which earned the reward and which nobody called."""


def join(parts: Sequence[Rows]) -> Rows:
    """Concatenate several collections of one kind; columns that only some have are those of `UNSAID` in the
    others, else zero.
    """
    if len(parts) == 1:
        return parts[0]
    scores = [part.scores for part in parts]
    greedy = [part.greedy_reward_b for part in parts]
    first, *others = parts
    return replace(
        first,
        examples=tuple(q for part in parts for q in part.examples),
        group_b=np.concatenate([part.group_b for part in parts]),
        index_b=np.concatenate([part.index_b for part in parts]),
        sample_b=np.concatenate([part.sample_b for part in parts]),
        rollout=_join_rollouts([part.rollout for part in parts]),
        scores=join_scores(scores),
        valid_b=np.concatenate([part.valid_b for part in parts]),
        source_b=np.concatenate([part.source_b for part in parts]),
        foreign_b=np.concatenate([part.foreign_b for part in parts]),
        greedy_reward_b=None
        if any(g is None for g in greedy)
        else np.concatenate([g for g in greedy if g is not None]),
        extras=_join_extras(parts),
        records=_join_records(parts),
        edges=joined([(part.edges, len(part)) for part in parts]),
        **first.own_joined(others),
    )


def join_scores(scores: Sequence[Scores]) -> Scores:
    """Concatenate the scores of several collections; components that only some have are NaN elsewhere."""
    names = list(dict.fromkeys(name for s in scores for name in s.components))
    missing = [np.full(len(s.reward_b), np.nan) for s in scores]
    return Scores(
        reward_b=np.concatenate([s.reward_b for s in scores]),
        components={
            n: np.concatenate([s.components.get(n, m) for s, m in zip(scores, missing, strict=True)]) for n in names
        },
        correct_b=np.concatenate([s.correct_b for s in scores]),
        status_b=np.concatenate([s.status_b for s in scores]),
        problems=[problem for s in scores for problem in s.problems],
        graded=any(s.graded for s in scores),
        lost_b=None if all(s.lost_b is None for s in scores) else np.concatenate([s.gone_b for s in scores]),
    )


def _join_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    first, *rest = rollouts
    return Rollout(
        inputs=first.inputs.joined([r.inputs for r in rest]),
        logp_bt=_stack([r.logp_bt for r in rollouts]),
        entropy_bt=_stack([r.entropy_bt for r in rollouts]),
        truncated_b=torch.cat([r.truncated_b for r in rollouts]),
        exact=all(r.exact for r in rollouts),
        version_bt=_join_versions(rollouts),
    )


def _join_versions(rollouts: Sequence[Rollout]) -> Tensor | None:
    """Return versions [B,T]; None if those of some rollout are not known."""
    known = [r.version_bt for r in rollouts if r.version_bt is not None]
    if len(known) < len(rollouts):
        return None
    # Shifted meanwhile, because rows are padded with 0, which is a version.
    return _stack([version_bt - NO_VERSION for version_bt in known]) + NO_VERSION


def _join_extras(parts: Sequence[ScoredSamples]) -> dict[str, np.ndarray]:
    """Return the columns of all parts, padded with zeros to the widest."""
    joined: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(name for part in parts for name in part.extras):
        like = next(part.extras[name] for part in parts if name in part.extras)
        blocks = [part.extras[name] if name in part.extras else _unsaid(name, like, part) for part in parts]
        width = max((block.shape[1] for block in blocks if block.ndim == 2), default=0)
        joined[name] = np.concatenate([b if b.ndim == 1 else _widen(b, width) for b in blocks])
    return joined


def _unsaid(name: str, like: np.ndarray, rows: ScoredSamples) -> np.ndarray:
    """Return the column `name` of rows that lack it, of the type of another part's."""
    said = UNSAID.get(name)
    return np.zeros((len(rows), *like.shape[1:]), like.dtype) if said is None else said(rows).astype(like.dtype)


def _join_records(parts: Sequence[ScoredSamples]) -> tuple[Record | None, ...] | None:
    if all(part.records is None for part in parts):
        return None
    return tuple(r for part in parts for r in (part.records or (None,) * len(part)))


def _widen(block: np.ndarray, width: int) -> np.ndarray:
    return np.pad(block, ((0, 0), (0, width - block.shape[1])))


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate [B_i, T_i] along B, padded with zeros to the longest."""
    width = max(t.shape[1] for t in tensors)
    return torch.cat([torch.nn.functional.pad(t, (0, width - t.shape[1])) for t in tensors])
