"""A diagnostic of a world: how far, and with how many random continuations, one must look to act best in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.async_methods import awaited, close
from grouprl.envs.environment import Environment, worth
from grouprl.envs.playing import over
from grouprl.protocols import Discrete

if TYPE_CHECKING:
    from grouprl.records.examples import Example

CLOSE = 1e-9
"""Largest difference from the best return that still counts as best."""


@dataclass(frozen=True)
class Look:
    """A way to look ahead: all sequences of `depth` actions, each followed by `samples` random continuations."""

    depth: int
    samples: int


@dataclass(frozen=True)
class EffectiveHorizon:
    """The looks that were tried in a world, and how good they are."""

    reached: dict[Look, float]
    """The share of repeats in which acting by a look earned the best return."""
    actions: int
    """A, the number of actions."""

    @property
    def look(self) -> Look | None:
        """The cheapest look that reached the best return in half of the repeats; None if none did."""
        enough = [look for look, share in self.reached.items() if share >= 0.5]
        return min(enough, key=self._steps, default=None)

    @property
    def steps(self) -> float:
        """H = depth + log_A(samples) of that look; inf if none was enough."""
        return math.inf if self.look is None else self._steps(self.look)

    def _steps(self, look: Look) -> float:
        return look.depth + math.log(look.samples, max(self.actions, 2))


def effective_horizon(
    make: Callable[[], Environment],
    example: Example,
    *,
    best: float,
    turns: int,
    depth: int = 2,
    most: int = 64,
    repeats: int = 8,
    seed: int = 0,
) -> EffectiveHorizon:
    """Return the effective horizon of the episodes of an example (Laidlaw et al. 2024, arXiv:2312.08369; 2023).

    At every step the action is taken whose continuations earn most: all sequences of `depth` actions are tried, each
    followed by uniformly random legal actions to the end, `samples` times. H is the smallest k + log_A(m) for which
    that earns the `best` return in half of the `repeats`. With k = 1 it is greedy on the values of the random policy,
    from which GRPO starts: where no m is enough, the groups of a fresh policy point away from the best actions.

    *Differs from the papers*: means of continuations in place of a regression (SQIRL), as in GORP, so every state is
    looked at anew and nothing generalises; depths and samples (1, 2, 4 ...) are tried up to `depth` and `most`.

    Args:
        make: returns a fresh environment with `spaces` whose actions are `Discrete`.
        example: determines how the episodes begin; the environment's chance events all have the seed 0.
        best: the best return of the example.
        turns: the largest number of actions of an episode.
        depth: the largest k.
        most: the largest m.
        repeats: how often acting by a look is repeated.
        seed: of the random continuations.

    Raises:
        InputError: other actions, a number below 1, or a return above the best.
    """
    if min(turns, depth, most, repeats) < 1:
        raise InputError(f"turns {turns}, depth {depth}, most {most}, repeats {repeats}", "each is at least 1")
    world = _World(make, example, turns)
    reached: dict[Look, float] = {}
    for look in (Look(k, 2**power) for k in range(1, depth + 1) for power in range(most.bit_length())):
        found = [world.acted(look, np.random.default_rng([seed, number])) for number in range(repeats)]
        if max(found) > best + CLOSE:
            raise InputError(f"a return of {max(found):g}", f"no return may be above best = {best:g}", "Raise best")
        reached[look] = float(np.mean([earned >= best - CLOSE for earned in found]))
    return EffectiveHorizon(reached, world.actions)


class _World:
    """Episodes of one example, each played from its beginning."""

    def __init__(self, make: Callable[[], Environment], example: Example, turns: int) -> None:
        environment = make()
        space = getattr(getattr(environment, "spaces", None), "action", None)
        close(environment)
        if not isinstance(space, Discrete):
            raise InputError(f"the actions {space}", "to try them all, they must be Discrete")
        self._make, self._example, self._turns, self.actions = make, example, turns, space.count

    def acted(self, look: Look, luck: np.random.Generator) -> float:
        """Return what is earned by taking at every step the action that looks best; of equal ones one is drawn."""
        taken: list[int] = []
        while (legal := self._after(taken)[1]).size:
            values = np.array([self._value([*taken, int(a)], look.depth - 1, look.samples, luck) for a in legal])
            taken.append(int(luck.choice(legal[values >= values.max() - CLOSE])))
        return self._after(taken)[0]

    def _value(self, taken: list[int], depth: int, samples: int, luck: np.random.Generator) -> float:
        """Return the largest mean return of random continuations over all next `depth` actions."""
        earned, legal = self._after(taken)
        if not legal.size:
            return earned
        if depth:
            return max(self._value([*taken, int(a)], depth - 1, samples, luck) for a in legal)
        return float(np.mean([self._after(taken, luck)[0] for _ in range(samples)]))

    def _after(self, taken: list[int], luck: np.random.Generator | None = None) -> tuple[float, np.ndarray]:
        """Return what is earned by some actions, and then by random ones if there is `luck`, and the actions that are
        legal after them; none are left at the end.
        """
        environment = self._make()
        try:
            legal = self._legal(awaited(environment.reset(self._example, 0)))
            earned, actions = 0.0, list(taken)
            for _ in range(self._turns):
                if actions:
                    action = actions.pop(0)
                elif luck is not None:
                    action = int(luck.choice(legal))
                else:
                    return earned, legal
                step = awaited(environment.step(action))  # type: ignore[arg-type]  # the protocol's actions are text
                earned, legal = earned + float(step.reward), self._legal(step.observation)
                if over(step):
                    break
            return earned + worth(awaited(environment.score())), legal[:0]
        finally:
            close(environment)

    def _legal(self, shown: object) -> np.ndarray:
        mask = getattr(shown, "legal", None)
        return np.arange(self.actions) if mask is None else np.flatnonzero(mask)
