"""The optimiser steps of a session on a rollout batch, and the size of the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grouprl.config.rates import Squares, ratio_of_squares, summed_squares, update_squares
from grouprl.core.batch import Batch
from grouprl.policy.weight_kinds import weight_kind
from grouprl.protocols import DistributedOptimizer, Trainable
from grouprl.training.measures.gap_record import GapRecord
from grouprl.training.measures.score_record import ScoreRecord
from grouprl.training.measures.step_record import StepRecord, numbered
from grouprl.training.measures.update_record import UpdateRecord
from grouprl.training.session import Session
from grouprl.training.update import update

if TYPE_CHECKING:
    from grouprl.algorithms.method import Method


def optimise(
    session: Session,
    prepared: Batch,
    method: Method,
    rate: float,
    *,
    parts: int,
    epochs: int,
    record: StepRecord | None = None,
) -> dict[str, float]:
    """Take the optimiser steps of a prepared batch at learning rate `rate`; return their metrics."""
    assert session.optimizer is not None
    for group in session.optimizer.param_groups:
        group["lr"] = rate
    return update(
        session.model,
        session.optimizer,
        method,
        prepared if record is None else numbered(prepared),
        parts=parts,
        epochs=epochs,
        seed=session.config.seed * 1_000_003 + session.step,
        grad_clip=session.config.optim.grad_clip,
        context=session.context,
        old_of_update=prepared.old_bt is None,
        record=record,
    )


def record_of_updates(session: Session, prepared: Batch) -> UpdateRecord | ScoreRecord | GapRecord | None:
    """Return what keeps the numbers of the step's updates: a reward model's scores, what is asked for, or the gaps
    between sampler and trainer alone; None if the step is not stored.
    """
    kept, every = session.config.run.record_updates, session.config.run.rollouts_every
    if not every or (session.step + 1) % every:
        return None
    if session.resolved.scores:
        columns = session.resolved.columns
        return ScoreRecord(len(prepared.group_b), () if columns is None else columns.names)
    if kept != "none":
        return UpdateRecord(prepared, gradients=kept == "gradients")
    own_steps = session.method.update is not None  # such a part may show the learner rows of its own
    return None if own_steps or prepared.behavior_bt is None else GapRecord(len(prepared.group_b))


def moved(session: Session, grad_norm: float) -> dict[str, float]:
    """Return the size of the last optimiser step relative to the weights, of all and of each kind where there are
    several; empty if there was no gradient.
    """
    assert session.optimizer is not None
    if not grad_norm > 0:
        return {}
    if isinstance(session.optimizer, DistributedOptimizer):
        pieces = [each for each in session.optimizer.measured(update_squares) if each is not None]
        squares = summed_squares(pieces)
    else:
        squares = update_squares(session.optimizer) or []
    ratio = ratio_of_squares(squares)
    return {} if ratio is None else {"update_ratio": ratio, **moved_kinds(session.model, squares)}


def moved_kinds(model: Trainable, squares: Sequence[Squares]) -> dict[str, float]:
    """Return the ratio of step to weights of each kind of weights; empty if there is one kind alone."""
    kinds: dict[str, list[Squares]] = {}
    for (name, _), each in zip(model.named_parameters(), squares, strict=True):
        kinds.setdefault(weight_kind(name), []).append(each)
    ratios = {f"update_ratio/{kind}": ratio_of_squares(found) for kind, found in kinds.items()}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None} if len(kinds) > 1 else {}
