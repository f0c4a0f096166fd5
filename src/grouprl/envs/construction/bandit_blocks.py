"""A bandit that stays the same for a block of pulls: the standard check of exploration without a bonus."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Box, Discrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example

Pair = tuple[int, int]
"""A count for either arm."""


class BanditBlock:
    """Pull the arms of a hidden bandit several times; whatever is known of it must come from the pulls.

    Each arm pays 1 with a chance of its own, which is drawn anew for every seed, evenly between 0 and 1. To explore is
    never rewarded: it pays only where the bandit stays (`pulls` above 1), results are remembered (`memory`) and credit
    reaches over the block (the method's gamma). Source: "Exploitation Is All You Need... for Exploration" (2025).

    Args:
        arms: number of arms.
        pulls: pulls of one bandit.
        memory: whether pulls and wins of each arm so far are shown, besides the share of pulls that is left.
    """

    def __init__(self, arms: int = 2, pulls: int = 20, memory: bool = True) -> None:
        if arms < 2 or pulls < 1:
            raise InputError(f"{arms} arms, {pulls} pulls", "a bandit has at least two arms, a block at least one pull")
        self.arms, self.pulls, self.memory = arms, pulls, memory
        self.spaces = Spaces(Box((2 * arms + 1 if memory else 1,), 0, 1), Discrete(arms))
        self.pulled_a, self.won_a = np.zeros(arms, dtype=int), np.zeros(arms, dtype=int)
        self._pays_ap = np.zeros((arms, 0), dtype=bool)

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Draw a bandit and the outcome of every pull of every arm: a group meets the same outcomes."""
        luck = np.random.default_rng(seed)
        chance_a = luck.random((self.arms, 1))
        self._pays_ap = luck.random((self.arms, self.pulls)) < chance_a
        self.pulled_a[:] = self.won_a[:] = 0
        return self._shown()

    def step(self, action: object) -> Step:
        """Pull an arm. Raises InputError for an unknown arm, and if the block is over."""
        arm, done = int(np.asarray(action)), int(self.pulled_a.sum())
        if done >= self._pays_ap.shape[1] or not 0 <= arm < self.arms:
            raise InputError(
                f"pull {done} of arm {arm}", f"a block has {self.pulls} pulls of arms 0 to {self.arms - 1}"
            )
        paid = int(self._pays_ap[arm, self.pulled_a[arm]])
        self.pulled_a[arm] += 1
        self.won_a[arm] += paid
        return Step(self._shown(), float(paid), terminated=done + 1 == self.pulls)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        """Return no components."""
        return {}

    def close(self) -> None:
        """End the block."""
        self._pays_ap = np.zeros((self.arms, 0), dtype=bool)

    def _shown(self) -> ArrayObservation:
        left = 1 - self.pulled_a.sum() / self.pulls
        seen = [*(self.pulled_a / self.pulls), *(self.won_a / self.pulls)] if self.memory else []
        return ArrayObservation(np.array([*seen, left], dtype=np.float32))


def best_of_two(pulls: int, horizon: int | None = None) -> float:
    """Return the expected reward of a block of two arms for a player that looks `horizon` pulls ahead; None: to its
    end.

    By going through all counts of pulls and wins, with an even prior on each arm. With a horizon of 1 it is the value
    of taking the arm with the highest mean so far, the first of equal ones.
    """

    @cache
    def ahead(won: Pair, lost: Pair, left: int) -> tuple[float, float]:
        """Return the expected reward of either arm over the next `left` pulls, with best choices after it."""

        def then(won: Pair, lost: Pair) -> float:
            return max(ahead(won, lost, left - 1)) if left > 1 else 0.0

        return _pulled(won, lost, 0, then), _pulled(won, lost, 1, then)

    @cache
    def value(won: Pair, lost: Pair) -> float:
        left = pulls - sum(won) - sum(lost)
        if left == 0:
            return 0.0
        first, second = ahead(won, lost, min(left, horizon or left))
        return _pulled(won, lost, int(second > first), value)

    return value((0, 0), (0, 0))


def _pulled(won: Pair, lost: Pair, arm: int, then: Callable[[Pair, Pair], float]) -> float:
    """Return the expected pay of a pull and of what follows it."""
    chance = (won[arm] + 1) / (won[arm] + lost[arm] + 2)
    return chance * (1 + then(_raised(won, arm), lost)) + (1 - chance) * then(won, _raised(lost, arm))


def _raised(counts: Pair, arm: int) -> Pair:
    return (counts[0] + (arm == 0), counts[1] + (arm == 1))
