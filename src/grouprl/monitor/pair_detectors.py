"""Findings on losses of pairs: chosen completions that lose likelihood, length in place of quality, a reference left
far behind."""

from __future__ import annotations

from math import exp, log

from grouprl.core.finding import Finding, Severity
from grouprl.monitor import health_codes as codes
from grouprl.monitor.history import HealthFacts, History, percent

DISPLACED = log(2)
"""Fall of a chosen completion's log-prob, in nats per token, at which each of its tokens is half as likely as before.
"Unintentional Unalignment" (arXiv:2410.08847) finds falls by factors where pairs are alike, and small ones harmless."""
ALIKE = 0.8
"""Share of tokens in a common beginning or end from which pairs are near-duplicates: DPO-Positive (arXiv:2402.13228)
shows on pairs that differ in a few tokens that all tokens after the difference lose likelihood."""
UNEVEN = 1.5
"""Ratio of mean lengths from which half as many tokens again add to one side's sum of log-probs, which LD-DPO
(arXiv:2409.06411) names as the reason why DPO is sensitive to length."""
LONGER = 1.5
"""Growth of sampled completions that counts: "Disentangling Length from Quality" (arXiv:2403.19159) finds policies of
DPO to write answers far longer than any they were trained on; half as long again is beyond the noise of 64 prompts."""
ROOM = 0.5
"""Share of the room up to the token limit whose loss counts as well: near the limit nothing can grow by half."""
NOTED = 0.1
"""Growth below which nothing is said, however little room there is."""
PREFERS_LENGTH = 1.1
"""Ratio of the mean lengths of chosen and rejected completions from which the data itself prefers length."""
DRIFTED = 1.0
"""Mean |log π/π_ref| of a completion of the pairs, in nats per token, at which a token is e times as likely or unlikely
as under the reference. Gains of direct alignment turn into losses as the KL grows (arXiv:2406.02900)."""


def likelihood_displacement(past: History, facts: HealthFacts) -> Finding | None:
    """Report chosen completions that have become unlikely while their margins over rejected ones rose."""
    fall, margin = _fall(past), past.mean("pair_margin")
    if fall is None or margin is None or fall < DISPLACED or margin <= 0:
        return None
    words = (
        f"Chosen completions have lost {fall:.2f} nats per token: a token is {percent(1 - exp(-fall))} "
        f"less likely than at the start, while margins rise (pair_margin {margin:.3g})."
    )
    cause, remedy = _cause(past)
    return codes.LIKELIHOOD_DISPLACEMENT(f"{words} {cause}", remedy)


def _fall(past: History) -> float | None:
    """Return by how much log-probs of chosen completions lie below the reference's or, without one, their start."""
    if (drift := past.mean("chosen_drift")) is not None:
        return -drift
    now, begun = past.mean("chosen_logp"), past.start("chosen_logp")
    return None if now is None or begun is None else begun - now


def _cause(past: History) -> tuple[str, str]:
    """Return the likely cause and the remedy for it."""
    alike = past.mean("pair_overlap")
    if alike is not None and alike >= ALIKE:
        cause = f"Pairs are near-duplicates: {percent(alike)} of their tokens are in a common beginning or end."
        return (
            cause,
            "Add chosen_nll, which holds chosen completions up, or leave out pairs that differ in few tokens.",
        )
    long, short = past.mean("chosen_length"), past.mean("rejected_length")
    if long and short and max(long / short, short / long) >= UNEVEN:
        cause = f"Lengths differ: chosen completions have {long:.1f} tokens, rejected ones {short:.1f}."
        return cause, "Take a mean over tokens (simpo), or weigh the part beyond the shorter length less (ld_dpo)."
    remedy = "Lower optim.lr, raise beta, or add chosen_nll, which holds chosen completions up."
    return "Pairs are neither alike nor of uneven lengths: the updates are too large.", remedy


def length_exploitation(past: History, facts: HealthFacts) -> Finding | None:
    """Report sampled completions that grow where the pairs prefer longer ones."""
    lengths = [float(x) for each in past.evaluations if isinstance(x := each.get("eval/length_mean"), (int, float))]
    long, short = past.mean("chosen_length"), past.mean("rejected_length")
    if len(lengths) < 2 or not long or not short or long < PREFERS_LENGTH * short:
        return None
    if not _grew(lengths[0], lengths[-1], facts.max_tokens):
        return None
    words = (
        f"Sampled completions have grown from {lengths[0]:.1f} to {lengths[-1]:.1f} tokens, and chosen completions are "
        f"longer than rejected ones ({long:.1f} and {short:.1f} tokens): length may stand for quality."
    )
    rewards = [float(x) for each in past.evaluations if isinstance(x := each.get("eval/reward"), (int, float))]
    better = len(rewards) > 1 and rewards[-1] > rewards[0]
    severity: Severity = "note" if better else "warning"
    return codes.LENGTH_EXPLOITATION(words, severity=severity)


def _grew(first: float, last: float, limit: int) -> bool:
    """Return whether completions have grown by half, or into half of their room up to `limit` tokens (0: unknown)."""
    needed = (LONGER - 1) * first
    if limit:
        needed = max(NOTED * first, min(needed, ROOM * (limit - first)))
    return last - first >= needed


def reference_drift(past: History, facts: HealthFacts) -> Finding | None:
    """Report pairs whose log-probs have moved far from the reference's."""
    sides = {name: past.mean(f"{name}_drift") for name in ("chosen", "rejected")}
    known = {name: value for name, value in sides.items() if value is not None}
    name, value = max(known.items(), key=lambda each: abs(each[1]), default=("", 0.0))
    if abs(value) < DRIFTED:
        return None
    words = f"The log-prob of {name} completions has moved by {value:+.2f} nats per token from the reference's."
    return codes.REFERENCE_DRIFT(words)
