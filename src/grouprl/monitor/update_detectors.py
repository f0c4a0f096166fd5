"""The conditions behind the findings about updates: kinds of weights, noise of gradients, signs of advantages."""

from __future__ import annotations

from grouprl.core.finding import Finding
from grouprl.monitor import health_codes as codes
from grouprl.monitor.history import HealthFacts, History, improved, percent
from grouprl.monitor.movement import RATIO_FAST

WORDS = {"embeddings": "the embeddings", "attention": "the attention", "mlp": "the MLP", "norms": "the norms"}
"""The names of kinds of weights in sentences."""
GROWN = ("adapters", "value_head", "other")
"""Kinds of which some weights may begin at 0, so that their size is not a measure of a step."""
PART_FAST = 0.1
"""A step of a tenth of a kind's weights: ten of them in one direction replace it. Fresh embeddings, of size 0.02, learn
at 3 %, so that the bound for all weights together would be too strict."""
BEHIND = 1e-3
"""Share of the ratio of all weights. Adam moves every weight by about its rate (Kingma and Ba 2015, arXiv:1412.6980,
section 2.1), so that ratios differ as the sizes of weights do: norms at 1 and embeddings at 0.02 by a factor of 50."""
STILL_STEPS = 20
"""Number of records after which a direction, or an improvement, can be expected to show."""
NOISIER = 10.0
"""Noise scale over groups of an optimiser step. There a step makes 1/11 of the progress of one without noise
(McCandlish et al. 2018, arXiv:1812.06162, equation 2.7); ours is how bad that is, and it counts without a gain only."""
DEAD = 0.9
"""Share of zero-variance groups from which the signal is missing because of them, which has its own finding."""
RIGHT = 0.9
"""Sampled pass@1 from which little is left to learn, so that the signal vanishes."""
LOPSIDED = 0.9
"""Share of one sign. BAPO (arXiv:2510.18927) reports instability where one sign dominates the loss; the level is
ours: completions of one sign are nine times as long as those of the other."""


def part_too_fast(past: History, facts: HealthFacts) -> Finding | None:
    """Report a kind of weights that changes too much, where the weights together do not."""
    if max(past.values("update_ratio"), default=0.0) >= RATIO_FAST:
        return None  # `moves_too_fast` says so
    for kind, name in _kinds(past):
        ratio = past.mean(name)
        if kind not in GROWN and ratio is not None and ratio >= PART_FAST:
            words = f"One optimiser step changes {_named(kind)} by {percent(ratio)} of their size"
            whole = past.mean("update_ratio") or 0.0
            return codes.PART_TOO_FAST(f"{words}, all weights together by {percent(whole)}.", key=name)
    return None


def part_stands_still(past: History, facts: HealthFacts) -> Finding | None:
    """Report a kind of weights that does not move while the others do."""
    whole = past.mean("update_ratio")
    for kind, name in _kinds(past) if whole else ():
        ratio = past.mean(name)
        if whole and ratio is not None and past.seen(name) >= STILL_STEPS and ratio < BEHIND * whole:
            words = f"One optimiser step changes {_named(kind)} by {ratio:.1g} of their size, all weights together by"
            return codes.PART_STANDS_STILL(f"{words} {whole:.1g}.", key=name)
    return None


def _kinds(past: History) -> list[tuple[str, str]]:
    return [(name.partition("/")[2], name) for name in past.names("update_ratio/")]


def _named(kind: str) -> str:
    return WORDS.get(kind, f"the weights of `{kind}`")


def noisy_gradient(past: History, facts: HealthFacts) -> Finding | None:
    """Report gradients without a common direction, while the policy does not get better."""
    signal, noise = past.mean("gradient_signal"), past.mean("gradient_noise")
    if signal is None or noise is None or not facts.groups_per_update or past.seen("gradient_signal") < STILL_STEPS:
        return None
    if signal * NOISIER * facts.groups_per_update >= noise or improved(past) or (past.mean("pass@1") or 0.0) >= RIGHT:
        return None
    if (past.mean("groups_zero_variance") or 0.0) >= DEAD:
        return None
    own = f"an optimiser step has {facts.groups_per_update:.3g}"
    words = "No common direction of the gradients can be told"
    if signal > 0:
        words = f"Signal and noise of a gradient are equal at about {noise / signal:.2g} groups"
    return codes.NOISY_GRADIENT(f"{words}; {own}. The policy has not got better.")


def lopsided_advantage(past: History, facts: HealthFacts) -> Finding | None:
    """Report advantage of almost one sign, unless the method never has the other."""
    share, low, high = past.mean("advantage_positive"), past.low("advantage_positive"), past.peak("advantage_positive")
    if share is None or low == 1 or high == 0 or 1 - LOPSIDED < share < LOPSIDED:
        return None
    side = "positive" if share > 0.5 else "negative"
    words = f"{percent(max(share, 1 - share))} of the advantage in the loss is {side}"
    return codes.LOPSIDED_ADVANTAGE(f"{words}: few tokens of the other sign stand against many.")
