"""Constraints that completions satisfy or violate: components of the reward."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.core.batch import Batch

HELD = 0.5
"""Value of a component from which its constraint holds: judges say 0 or 1."""


def constraint_names(constraints: tuple[str, ...]) -> tuple[str, ...]:
    """Return the fields of a batch that hold the constraints' components."""
    return tuple(f"rewards.{name}" for name in constraints)


def holds_code(constraints: tuple[str, ...]) -> str:
    """Return the expression [B] bool of `satisfied` in plain torch; '' without constraints."""
    return " & ".join(f"(rewards[{name!r}] >= {HELD!r})" for name in constraints)


def satisfied(batch: Batch, constraints: tuple[str, ...], name: str) -> Tensor:
    """Return [B] bool: rows on which every constraint, a component of the reward, is at least one half."""
    held_b = torch.ones_like(batch.stats_b)
    for field in constraint_names(constraints):
        held_b = held_b & (batch.need(field, name) >= HELD)
    return held_b
