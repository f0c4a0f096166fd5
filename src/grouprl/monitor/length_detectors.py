"""The conditions behind the findings on lengths: completions that are cut off, grow, or shrink to nothing."""

from __future__ import annotations

from grouprl.core.finding import Finding, Severity
from grouprl.monitor import health_codes as codes
from grouprl.monitor.history import HealthFacts, History, percent, rise

TRUNCATED_WARNING, TRUNCATED_ALARM = 0.10, 0.30
"""ScaleRL (arXiv:2510.13786) names truncation of 10 to 15 % as the sign that precedes instability."""
LENGTH_GROWN, LENGTH_SHRUNK, LENGTH_NOTHING = 2.5, 0.35, 1.5
"""Factors relative to the start, and the mean length in tokens of completions without content."""


def truncation(past: History, facts: HealthFacts) -> Finding | None:
    """Report completions cut off by the token limit, or episodes cut off by the turn limit."""
    cut = past.mean("truncated_fraction")
    if cut is None or cut < TRUNCATED_WARNING or facts.segments:
        return None
    if past.mean("turns_mean") is not None:
        words = f"{percent(cut)} of the episodes are cut off by a limit, of turns or of room, before they reach an end."
        remedy = "Usual while a policy fails; if it persists, allow more turns, or look at what they are spent on."
        return codes.TRUNCATION(words, remedy, severity="note")
    limit = f" at {facts.max_tokens} tokens" if facts.max_tokens else ""
    words = (
        f"{percent(cut)} of the completions are cut off{limit} before they end; above 10 % runs tend to "
        "become unstable."
    )
    severity: Severity = "alarm" if cut >= TRUNCATED_ALARM else "warning"
    remedy = "Raise the token limit, or shape rewards against overlong completions (dapo)."
    if (past.mean("loop_fraction") or 0.0) >= cut / 2:
        remedy = "Look at the loops in which they end: with a higher limit these would only be longer."
    elif (past.mean("length_mean") or 0.0) > LENGTH_GROWN * (begun := past.untrained("length_mean") or 0.0) > 0:
        words += f" Completions have grown into the limit, from {begun:.1f} tokens."
        remedy = "See whether the reward pays length, which a higher limit would only let grow. Else raise the limit."
    return codes.TRUNCATION(words, remedy, severity=severity)


def length_change(past: History, facts: HealthFacts) -> Finding | None:
    """Report completions that become far longer, or shrink to nothing."""
    now, start = past.mean("length_mean"), past.untrained("length_mean")
    if now is None or start is None or start == 0:
        return None
    gained = rise(past)
    words = f"Completions have gone from {start:.1f} to {now:.1f} tokens"
    if now > LENGTH_GROWN * start:
        if gained == "pass@1":
            return codes.LENGTH_GROWTH(
                f"{words}, and the policy got better with it.", "Watch the token limit.", severity="note"
            )
        if gained:
            remedy = "Read a few: a reward that pays length itself looks the same. Watch the token limit."
            return codes.LENGTH_GROWTH(f"{words}, and the reward rose with it.", remedy, severity="note")
        remedy = "Look at the samples; check the reward for a length bias; prefer token_mean or constant_length."
        return codes.LENGTH_GROWTH(f"{words} without getting better.", remedy)
    if (now < LENGTH_SHRUNK * start or now < LENGTH_NOTHING < start) and not gained:
        remedy = "Look at the samples; check whether the reward can be had without a solution."
        return codes.LENGTH_SHRINKING(f"{words} without getting better.", remedy)
    return None
