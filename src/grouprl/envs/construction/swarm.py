"""A swarm of oscillators that is to move as one, with one rule for all: mean-field control as an environment."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Box, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example


class Kuramoto:
    """Give a swarm of oscillators the rule by which each turns; the swarm is paid for how much it moves as one.

    Oscillator i has a phase θ_i and a frequency of its own, and sees the phase of the crowd, ψ, minus its own, with
    noise. The action is the rule that all share: how fast to turn at `knots` differences, evenly around the circle,
    and smoothly in between. Each oscillator then draws its own turn, θ_i ← θ_i + `pace`·(ω_i + u_i), u_i normal
    around the rule's, cut to [-1, 1]. The reward is r = |mean exp(iθ)| after the turn, divided by the steps. A swarm
    of another size has the same spaces, so that a policy acts in it as it is. Source: Cui et al. 2023,
    Dec-POMFPPO (arXiv:2307.06175); its rules are given by kernels at points, its upper policy reads the mean field.

    Args:
        oscillators: size of the swarm.
        knots: points at which the rule is given.
        steps: length of an episode.
        pace: seconds of a step.
        spread: deviation of the oscillators' own frequencies.
        noise: deviation of what an oscillator sees, in radians, and of its turn.
        informed: whether the policy sees r, and the second and third moment of the phases around ψ, or nothing.
    """

    def __init__(
        self,
        oscillators: int = 50,
        knots: int = 8,
        steps: int = 20,
        pace: float = 0.2,
        spread: float = 0.3,
        noise: float = 0.2,
        informed: bool = True,
    ) -> None:
        if oscillators < 2 or knots < 2 or steps < 1 or pace <= 0 or min(spread, noise) < 0:
            raise InputError(
                f"{oscillators} oscillators, {knots} knots, {steps} steps, pace {pace}, spread {spread}, noise {noise}",
                "there are at least two oscillators, two knots and a step, a pace above 0, and no negative deviations",
            )
        self.oscillators, self.knots, self.steps, self.pace = oscillators, knots, steps, pace
        self.spread, self.noise, self.informed = spread, noise, informed
        self.spaces = Spaces(Box((4,)), Box((knots,), -1.0, 1.0))
        self.phase_n, self.own_n = np.zeros(oscillators), np.zeros(oscillators)
        self._luck, self._left = np.random.default_rng(0), 0

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Begin with phases all around the circle."""
        self._luck, self._left = np.random.default_rng(seed), self.steps
        self.phase_n = self._luck.uniform(-math.pi, math.pi, self.oscillators)
        self.own_n = self._luck.normal(0, self.spread, self.oscillators)
        return self._shown()

    def step(self, action: object) -> Step:
        """Let all turn by a rule [knots]. Raises InputError for another shape, and when no episode is under way."""
        rule_k = np.asarray(action, dtype=float)
        if self._left == 0 or rule_k.shape != (self.knots,):
            raise InputError(
                f"a rule of shape {rule_k.shape}",
                f"rules have {self.knots} numbers, and are given during an episode",
                "Call reset first",
            )
        _, crowd = order(self.phase_n)
        seen_n = crowd - self.phase_n + self._luck.normal(0, self.noise, self.oscillators)
        turn_n = turns(rule_k, seen_n) + self._luck.normal(0, self.noise, self.oscillators)
        self.phase_n = self.phase_n + self.pace * (self.own_n + turn_n.clip(-1, 1))
        self._left -= 1
        paid = order(self.phase_n)[0] / self.steps
        return Step(self._shown(), paid, terminated=self._left == 0)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        """Return how ordered the swarm is in the end, as a count, which pays nothing."""
        return {"#order": order(self.phase_n)[0]}

    def close(self) -> None:
        """End the episode."""
        self._left = 0

    def _shown(self) -> ArrayObservation:
        strength, crowd = order(self.phase_n)
        moments = [np.cos(k * (self.phase_n - crowd)).mean() for k in (2, 3)] if self.informed else [0.0, 0.0]
        seen = [strength * self.informed, *moments, self._left / self.steps]
        return ArrayObservation(np.array(seen, dtype=np.float32))


def order(phase_n: np.ndarray) -> tuple[float, float]:
    """Return r = |mean exp(iθ)|, 0 to 1, and the angle ψ of that mean."""
    mean = np.exp(1j * phase_n).mean()
    return float(abs(mean)), float(np.angle(mean))


def turns(rule_k: np.ndarray, seen_n: np.ndarray) -> np.ndarray:
    """Return a rule's turn at each difference [N]: the mean of its knots, weighted by exp(κ·cos(difference - knot)).

    κ = (K/2π)², so that a knot reaches about as far as the next.
    """
    count = len(rule_k)
    knot_k = 2 * math.pi * np.arange(count) / count
    # Less 1, which cancels in the mean: exp(κ) itself is infinite from 168 knots on.
    weight_nk = np.exp((count / (2 * math.pi)) ** 2 * (np.cos(seen_n[:, None] - knot_k) - 1))
    return np.asarray(weight_nk @ rule_k / weight_nk.sum(1))
