"""Preferences between completions as probabilities: of a judge that compared them, or of their rewards."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from grouprl.core.batch import Batch
from grouprl.core.errors import InputError

By = Literal["reward", "judge"]
"""Who prefers: rewards, as the scores of Bradley and Terry, or a judge that compares completions."""
PREFERRED = "preferred"
"""Name of the edges of a preference matrix: one for every two rows that were compared, its value the probability that
the first is preferred."""
OPPONENT = "opponent"
"""Key of rows: 1 for completions that were sampled as opponents of the policy's own, else 0."""

MEASURE = "measure"
"""Key of rows: 1 for the completion of a group that the others are compared with, else 0."""


def needs(by: By) -> tuple[str, ...]:
    """Return the batch fields that say which row is preferred."""
    return (f"edges.{PREFERRED}",) if by == "judge" else ()


def preferences(batch: Batch, by: By, reader: str) -> tuple[Tensor, Tensor]:
    """Return P(row ≻ column) [B,B], and whether the two were compared [B,B] bool.

    By rewards, every two rows of a group that count are compared: P = σ(R_row - R_column).

    Raises:
        InputError: an edge whose value is not a probability.
    """
    return _judged(batch, reader) if by == "judge" else _scored(batch)


SCORED = """there_b = counts_b & mask_bt.any(1)
known_bb = same_bb & there_b[:, None] & there_b & ~torch.eye(len(reward_b), dtype=torch.bool)
chance_bb = (reward_b[:, None] - reward_b).sigmoid()"""
"""Lines of plain torch that assign the preferences by rewards, and which rows were compared."""


def _scored(batch: Batch) -> tuple[Tensor, Tensor]:
    reward_b, there_b = batch.total_reward_b, batch.stats_b & batch.mask_bt.any(1)
    known_bb = (batch.group_b[:, None] == batch.group_b) & there_b[:, None] & there_b
    known_bb &= ~torch.eye(len(reward_b), dtype=torch.bool, device=reward_b.device)
    return (reward_b[:, None] - reward_b).sigmoid(), known_bb


def _judged(batch: Batch, reader: str) -> tuple[Tensor, Tensor]:
    edges = batch.need(f"edges.{PREFERRED}", reader)
    first_e, second_e = edges.index_e2.T
    value_e = edges.value_e.to(batch.dtype)
    wrong_e = ~((value_e >= 0) & (value_e <= 1))
    if bool(wrong_e.any()):
        raise InputError(
            f"a preference of {float(value_e[wrong_e][0]):g}",
            f"{reader} reads edges['{PREFERRED}'] as probabilities that the first row is preferred",
            "Give numbers from 0 to 1, and no edge where two rows were not compared",
        )
    size = len(batch.group_b)
    chance_bb = torch.full((size, size), 0.5, dtype=batch.dtype, device=value_e.device)
    known_bb = torch.zeros_like(chance_bb, dtype=torch.bool)
    chance_bb[first_e, second_e], chance_bb[second_e, first_e] = value_e, 1 - value_e
    known_bb[first_e, second_e] = known_bb[second_e, first_e] = True
    there_b = batch.stats_b & batch.mask_bt.any(1)
    return chance_bb, known_bb & there_b[:, None] & there_b


def is_opponent(batch: Batch, reader: str) -> Tensor:
    """Return [B] bool: completions of an opponent."""
    opponent_b: Tensor = batch.need(f"keys.{OPPONENT}", reader)
    return opponent_b == 1


def verdicts(batch: Batch, by: By, reader: str) -> tuple[Tensor, Tensor]:
    """Return [B] +1 for completions that are preferred to their group's measure, -1 for the others compared with it, 0
    for it, and [B] bool: which were compared, or are it.
    """
    chance_bb, known_bb = preferences(batch, by, reader)
    measure_b = batch.need(f"keys.{MEASURE}", reader) == 1
    known_bb = known_bb & measure_b & (batch.group_b[:, None] == batch.group_b)
    compared_b = known_bb.any(1) & ~measure_b
    wins_b = (known_bb & (chance_bb > 0.5)).any(1)
    sign_b = torch.where(wins_b, 1.0, -1.0).to(batch.dtype)
    return torch.where(compared_b, sign_b, 0), compared_b | (measure_b & known_bb.any(0))


VERDICTS = f"""{SCORED}
measure_b = keys['{MEASURE}'] == 1
known_bb = known_bb & measure_b
met_b = known_bb.any(1) & ~measure_b
sign_b = met_b * ((known_bb & (chance_bb > 0.5)).any(1).to(reward_b.dtype) * 2 - 1)"""
"""Lines of plain torch that assign the verdicts by rewards, and which rows were compared with the measure."""
