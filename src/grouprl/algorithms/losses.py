"""Losses of tokens, rows, pairs and groups, as objectives and regularisers return them, and the weights of each level.

The loss of a token has the aggregation's weight of that token. The loss of a row or of a group applies to each of its
tokens. The loss of a pair counts half at each of its two rows, so that with rows of equal weight a group's loss is the
mean over its pairs. Metrics are means over the items that carry a gradient, at the level of the metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.edges import Edges
from grouprl.core.metric import GLOSSARY, Level

if TYPE_CHECKING:
    from torch import Tensor

PAIRS = "pairs"
"""Name of the edges that the method's objective compares."""


@dataclass(frozen=True)
class TokenLoss:
    """Losses [B,T] of tokens, and metrics [B,T]."""

    loss_bt: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    level: ClassVar[Level] = "token"


@dataclass(frozen=True)
class RowLoss:
    """Losses [B] of whole rows, and metrics [B]."""

    loss_b: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    level: ClassVar[Level] = "row"


@dataclass(frozen=True)
class PairLoss:
    """Losses [E] of the pairs that the method's objective compares, in the order of `batch.edges['pairs']`, and metrics
    [E].
    """

    loss_e: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    level: ClassVar[Level] = "pair"


@dataclass(frozen=True)
class GroupLoss:
    """Losses [G] of groups, in the order of their ids, and metrics [G]."""

    loss_g: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    level: ClassVar[Level] = "group"


Losses = TokenLoss | RowLoss | PairLoss | GroupLoss
AXES: dict[Level, str] = {"token": "bt", "row": "b", "pair": "e", "group": "g"}
"""Index letters at the end of the names of a level's tensors."""


def value_of(loss: Losses) -> Tensor:
    """Return the losses unchanged, at their own level."""
    value: Tensor = getattr(loss, f"loss_{AXES[loss.level]}")
    return value


def size_of(level: Level, batch: Batch) -> tuple[int, ...]:
    """Return the shape that losses and metrics of `level` have in `batch`."""
    if level in ("token", "row"):
        return batch.size[: len(AXES[level])]
    return (len(pairs_of(batch, "a metric of pairs") if level == "pair" else torch.unique(batch.group_b)),)


def pairs_of(batch: Batch, reader: str) -> Edges:
    """Return the pairs that the method's objective compares, or raise InputError naming `reader`."""
    pairs: Edges = batch.need(f"edges.{PAIRS}", reader)
    return pairs


def ordered_pairs(value_b: Tensor, batch: Batch) -> Tensor:
    """Return [E,2] every two rows of a group that count and whose values ([B]) differ, the larger one first."""
    known_b = counted(batch) > 0
    pair_bb = (batch.group_b[:, None] == batch.group_b[None]) & known_b[:, None] & known_b[None]
    return (pair_bb & (value_b[:, None] > value_b[None])).nonzero()


def out_of(index_e2: Tensor, batch: Batch) -> Tensor:
    """Return [B] bool: rows that are in none of the pairs `index_e2`."""
    out_b = torch.ones_like(batch.group_b, dtype=torch.bool)
    out_b[index_e2.flatten()] = False
    return out_b


def at_tokens(loss: Losses, batch: Batch) -> Tensor:
    """Return losses of any level as losses [B,T] of tokens, to be weighted by the aggregation."""
    if isinstance(loss, TokenLoss):
        return loss.loss_bt
    if isinstance(loss, RowLoss):
        loss_b = loss.loss_b
    elif isinstance(loss, GroupLoss):
        loss_b = loss.loss_g[levels.compact(batch.group_b)[0]]
    else:
        loss_b = _at_rows(loss.loss_e, batch)
    return loss_b[:, None] * batch.active_bt


def _at_rows(loss_e: Tensor, batch: Batch) -> Tensor:
    """Return [B] G/(2·#pairs of the group) times the losses of the pairs of each row, G the rows that count in the
    group.
    """
    from_e, to_e = pairs_of(batch, "a loss of pairs").index_e2.T
    zero_b = torch.zeros_like(batch.group_b, dtype=loss_e.dtype)
    pairs_b = levels.total(zero_b.index_add(0, from_e, torch.ones_like(loss_e)), batch.group_b)
    size_b = levels.count(batch.group_b, counted(batch), loss_e.dtype)
    share_b = torch.where(pairs_b > 0, size_b / (2 * pairs_b.clamp(min=1)), 0)
    return share_b * zero_b.index_add(0, from_e, loss_e).index_add(0, to_e, loss_e)


def counted(batch: Batch) -> Tensor:
    """Return [B] 1 for rows that count in group statistics and have an active token, else 0."""
    return (batch.stats_b & batch.active_bt.any(1)).to(batch.dtype)


def with_shares(batch: Batch, live_b: Tensor) -> Batch:
    """Return an optimiser step with the weights of its metrics at every level; rows out of `live_b` have none."""
    live_bt = (batch.active_bt & live_b[:, None]).to(batch.dtype)
    row_b = live_bt.any(1).to(batch.dtype)
    share_b = group_share_b = row_b / row_b.sum().clamp(min=1)
    if not levels.numbered(batch.group_b):
        group_b = row_b / levels.total(row_b, batch.group_b).clamp(min=1)
        group_share_b = group_b / group_b.sum().clamp(min=1)
    share_bt = live_bt / live_bt.sum().clamp(min=1)
    return batch.replace(share_bt=share_bt, share_b=share_b, group_share_b=group_share_b)


def paired(batch: Batch, index_e2: Tensor) -> Batch:
    """Return an optimiser step with the pairs that its objective compares, each with its share of them."""
    share_e = torch.full((len(index_e2),), 1 / max(len(index_e2), 1), dtype=batch.dtype)
    return batch.replace(edges={**batch.edges, PAIRS: Edges(index_e2, share_e)})


def shares(batch: Batch) -> dict[Level, Tensor]:
    """Return the weights of metrics by level; over a whole step each adds up to 1, or to 0 where nothing counts."""
    known: tuple[Level, ...] = ("token", "row", *(("pair",) if PAIRS in batch.edges else ()), "group")
    return {level: share_of(level, batch) for level in known}


def share_of(level: Level, batch: Batch) -> Tensor:
    """Return the weights of the metrics of one level."""
    if level == "pair":
        return pairs_of(batch, "a metric of pairs").value_e
    if level != "group":
        return batch.need("share_bt" if level == "token" else "share_b", "metrics")
    share_b: Tensor = batch.need("group_share_b", "metrics")
    if levels.numbered(batch.group_b):
        return share_b
    index_b, groups = levels.compact(batch.group_b)
    return share_b.new_zeros(groups).index_add_(0, index_b, share_b)


def level_of(name: str, loss: Losses) -> Level:
    """Return the level of a metric: the declared one, else that of the loss it comes with.

    A metric of pairs that comes with a loss of rows, such as TRL's of labelled completions, is one of rows.
    """
    declared = GLOSSARY[name].level if name in GLOSSARY else loss.level
    return "row" if declared == "pair" and loss.level == "row" else declared


def means(loss: Losses, batch: Batch) -> dict[str, Tensor]:
    """Return the metrics of a loss: weighted sums at their own level, which over a whole step add up to means."""
    share: dict[Level, Tensor] = {}
    found = {}
    for name, value in loss.metrics.items():
        level = level_of(name, loss)
        share[level] = share[level] if level in share else share_of(level, batch)
        found[name] = (share[level] * value.detach()).sum()
    return found
