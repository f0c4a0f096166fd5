"""Rewards of programs that are made faster."""

from __future__ import annotations

import math

IMPROVEMENT, FORMAT = 0.5, 0.2


def improvement(passed: bool, passes: bool, before: float, now: float, most: float = math.inf) -> float:
    """Return c + 0.5·[c > 0]·tanh(clip((before - now)/before, -1, 1)): Afterburner (Du et al. 2025, arXiv 2505.23387).

    c depends on whether the tests pass before and after: newly passing 1, still passing 0.5, still failing -0.5, newly
    failing -1. Costs above `most` count as `most`; a cost of 0 cannot be improved.
    """
    change = {(False, True): 1.0, (True, True): 0.5, (False, False): -0.5, (True, False): -1.0}[passed, passes]
    before, now = min(before, most), min(now, most)
    gain = min(max((before - now) / before, -1.0), 1.0) if before else 0.0
    return change + 0.5 * (change > 0) * math.tanh(gain)


def afterburner(passed: bool, passes: bool, before: float, now: float, well_formed: bool) -> dict[str, float]:
    """Return 0.5 of the improvement, and 0.2 for the format; the length term of the released code is switched off."""
    gained = improvement(passed, passes, before, now)
    return {"improvement": IMPROVEMENT * gained, "format": FORMAT * well_formed}
