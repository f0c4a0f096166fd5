"""A finding on learned rewards: what is paid rises, what is true falls."""

from __future__ import annotations

from grouprl.core.finding import Finding, Severity
from grouprl.monitor import health_codes as codes
from grouprl.monitor.history import HealthFacts, History

PAID, GOLD, KL = "reward_mean", "reward/gold", "kl_ref"
FELL = 0.1
"""Fall of the true reward, as a share of its size, that counts: means of ten batches fluctuate less."""
SURE = 3.0
"""Standard errors of a difference of means that the fall must exceed: the best of many windows is a lucky one. For the
rise of the paid reward, whose windows are not chosen, one is enough."""
LOST = 0.5
"""Share of the true reward's gain whose loss is an alarm: a checkpoint from before would have kept it."""


def overoptimisation(past: History, facts: HealthFacts) -> Finding | None:
    """Report a measured true reward that has fallen from its best while the paid one kept near or above its own.

    The curve of "Scaling Laws for Reward Model Overoptimization" (arXiv:2210.10760): against the KL to the first policy
    the learned reward rises, and the true one rises and falls.
    """
    gold, first, best = past.mean(GOLD), past.start(GOLD), past.best(GOLD)
    paid, begun = past.mean(PAID), past.start(PAID)
    if gold is None or first is None or best is None or paid is None or begun is None:
        return None
    if paid - begun <= past.error(PAID) or best - gold <= SURE * past.error(GOLD):
        return None
    size = max(abs(best), abs(first), best - first)
    if best - gold < FELL * size or _fell_together(past, paid, begun):
        return None
    kl = past.mean(KL)
    at = "" if kl is None else f" at a KL of {kl:.3g} per token to the reference"
    words = (
        f"The paid reward has risen from {begun:.3g} to {paid:.3g}{at}, while the true one, `gold`, has fallen from "
        f"{best:.3g} to {gold:.3g} ({first:.3g} at the start)."
    )
    worse = gold < first - FELL * size or best - gold >= LOST * max(best - first, FELL * size)
    severity: Severity = "alarm" if worse else "warning"
    return codes.OVEROPTIMISATION(words, severity=severity)


def _fell_together(past: History, paid: float, begun: float) -> bool:
    """Return whether the paid reward has fallen from its best, too: that is a collapse, which is reported elsewhere."""
    best = past.best(PAID)
    return best is not None and best - paid > FELL * (best - begun)
