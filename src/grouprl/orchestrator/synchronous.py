"""The source of samples that draws for each step when the step comes: choose questions, draw answers, explore.

Every stage that a method does not have is the plain one: questions in their order, equally many answers each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grouprl.core.errors import RunError
from grouprl.orchestrator.accounting import NO_ROWS, Fates, dropped
from grouprl.rollout.requests import Ask
from grouprl.rollout.samples import Collected, subset

if TYPE_CHECKING:
    from grouprl.orchestrator.context import RunDesk

Round = tuple[Collected, Collected | None, Fates]
"""Rows of one round; rows that exploration took away, drawn but not trained on, and why each of these is not."""


class Synchronous:
    """A `grouprl.protocols.SampleSource` with nothing under way between steps."""

    ahead = False

    def __init__(self, desk: RunDesk) -> None:
        self.desk = desk

    def begin(self, say: Callable[[str], None]) -> None:
        """Nothing is to be got ready."""

    def round(self, count: int) -> Round | None:
        """Ask `count` questions; None when nothing is left to ask."""
        desk = self.desk
        asks = choose(desk, count) if count > 0 else []
        if not asks:
            return None
        collected = desk.draw(asks)
        if desk.method.greedy_baseline:
            collected = _with_greedy(desk, asks, collected)
        plain, fate_b = collected, dropped(collected)
        for part in desk.method.explore:
            collected = part(collected, desk)
            if not len(collected):
                raise RunError(f"{part.name} left no row of {len(asks)} questions; a step needs at least one")
            fate_b[(fate_b == "") & ~among(plain, collected)] = part.takes
        gone_b = ~among(plain, collected)
        return (collected, subset(plain, gone_b), fate_b[gone_b]) if gone_b.any() else (collected, None, NO_ROWS)

    def advance(self, step: Any) -> dict[str, float]:
        """End a step; there is nothing to tell of it."""
        return {}

    def state(self) -> dict[str, Any]:
        """Nothing is under way between steps."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing was under way."""

    def close(self) -> None:
        """Nothing runs."""


def choose(desk: RunDesk, count: int) -> Sequence[Ask]:
    """Choose `count` questions, with how often and in what way each is answered; fewer where there are no more."""
    method = desk.method
    asks: Sequence[Ask] = desk.take(count) if method.curriculum is None else method.curriculum.choose(count, desk)
    if method.allocation is not None:
        asks = [ask for ask in method.allocation.allot(asks, desk) if ask.answers > 0]
    return asks if method.sampling is None else method.sampling.adjust(asks, desk)


def among(rows: Collected, others: Collected) -> NDArray[np.bool_]:
    """[B] bool: which of `rows` are there among the others, too."""
    there = set(others.row_keys)
    return np.array([key in there for key in rows.row_keys], dtype=bool)


def _with_greedy(desk: RunDesk, asks: Sequence[Ask], collected: Collected) -> Collected:
    reward_b = desk.collector.greedy_reward(asks, collected.group_b)
    return replace(collected, greedy_reward_b=reward_b, kept_b=collected.kept_b & np.isfinite(reward_b))
