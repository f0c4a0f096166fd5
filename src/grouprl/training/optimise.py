"""The optimiser steps of a session on a rollout batch, and the size of the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.config.rates import ratio_of_squares, update_ratio, update_squares
from grouprl.core.batch import Batch
from grouprl.protocols import DistributedOptimizer
from grouprl.training.session import Session
from grouprl.training.update import update

if TYPE_CHECKING:
    from grouprl.algorithms.method import Method


def optimise(
    session: Session, prepared: Batch, method: Method, rate: float, *, parts: int, epochs: int
) -> dict[str, float]:
    """Take the optimiser steps of a prepared batch at learning rate `rate`; return their metrics."""
    assert session.optimizer is not None
    for group in session.optimizer.param_groups:
        group["lr"] = rate
    return update(
        session.model,
        session.optimizer,
        method,
        prepared,
        parts=parts,
        epochs=epochs,
        seed=session.config.seed * 1_000_003 + session.step,
        grad_clip=session.config.optim.grad_clip,
        context=session.context,
        old_of_update=prepared.old_bt is None,
    )


def moved(session: Session, grad_norm: float) -> dict[str, float]:
    """Return the size of the last optimiser step relative to the weights; empty if there was no gradient."""
    assert session.optimizer is not None
    if not grad_norm > 0:
        return {}
    if isinstance(session.optimizer, DistributedOptimizer):
        pieces = [each for each in session.optimizer.measured(update_squares) if each is not None]
        ratio = ratio_of_squares(pieces) if pieces else None
    else:
        ratio = update_ratio(session.optimizer)
    return {} if ratio is None else {"update_ratio": ratio}
