"""The conditions behind the findings on a policy that degenerates: texts in loops, clips that always act, a reference
left far behind."""

from __future__ import annotations

from grouprl.core.finding import Finding, Severity
from grouprl.monitor import health_codes as codes
from grouprl.monitor.history import HealthFacts, History, improved, percent
from grouprl.monitor.loops import TIMES

LOOPED = 0.1
"""Share of completions. In "The Curious Case of Neural Text Degeneration" (arXiv:1904.09751, table 1) 0.3 % of human
texts and of sampled ones end in a repetition, 29 % of those by beam search and 74 % of greedy ones."""
RIGHT = 0.5
"""Sampled pass@1 from which a reward that counts loops as right is the likely cause."""
CLIPPED = 0.5
"""Share of the tokens within reach. A clip leaves tokens alone that moved against their advantage, half of them where
moves are chance, so that half is as much as a clip of no width takes. GSPO (arXiv:2507.18071, section 5.2) trains well
where it clips 15 %, two orders of magnitude more than GRPO does."""
FAR = 1.0
"""Nats per token by which it has moved away: a token is on average e times as likely as under the reference. One that
begins far from its reference, such as a pupil from its teacher, is measured from where it was nearest."""


def repetition_loops(past: History, facts: HealthFacts) -> Finding | None:
    """Report completions that end in loops: a warning if they were not there at the start, or nothing got better."""
    looped = past.mean("loop_fraction")
    if looped is None or looped < LOOPED:
        return None
    begun = past.start("loop_fraction") or 0.0
    words = f"{percent(looped)} of the completions end in a loop, the same tokens {TIMES} times or more"
    severity: Severity = "warning" if looped - begun >= LOOPED or not improved(past) else "note"
    if (past.mean("pass@1") or 0.0) < RIGHT:
        return codes.REPETITION_LOOPS(f"{words} ({percent(begun)} at the start).", severity=severity)
    words += f" ({percent(begun)} at the start), and most completions count as right: the reward pays them"
    remedy = "Give 0 to a text that repeats itself, or bound what is paid for length and for single words."
    return codes.REPETITION_LOOPS(f"{words}.", remedy, severity=severity)


def busy_clip(past: History, facts: HealthFacts) -> Finding | None:
    """Report a clip that acts on most of the tokens that it can reach."""
    name = next((n for n in ("clip_fraction", "pair_clip_fraction") if past.mean(n) is not None), "")
    share = past.mean(name) if facts.clips and name else None
    if share is None or share < CLIPPED * _within_reach(facts):
        return None
    what = "pairs" if name == "pair_clip_fraction" else "trained tokens"
    words = f"The clip takes the gradient from {percent(share)} of the {what}"
    if _within_reach(facts) < 1:
        first = f"the first of {facts.updates_per_rollout} optimiser steps of a rollout"
        words += f", and in {first} it cannot act"
    return codes.BUSY_CLIP(f"{words}.", key=name)


def _within_reach(facts: HealthFacts) -> float:
    """Return the share of a rollout's updates in which a ratio can differ from 1."""
    return 1 - 1 / facts.updates_per_rollout if facts.exact_sampler and facts.updates_per_rollout > 1 else 1.0


def far_from_reference(past: History, facts: HealthFacts) -> Finding | None:
    """Report a policy far from its reference that did not get better on the way."""
    kl, least = past.mean("kl_ref"), past.low("kl_ref")
    if kl is None or least is None or min(past.values("kl_ref")) - least < FAR or improved(past):
        return None
    words = f"The policy is {kl:.2f} nats per token from the reference, after {least:.2g} at the least"
    return codes.FAR_FROM_REFERENCE(f"{words}, and has not got better on the way.")
