"""The conditions behind the findings about what is paid: components, success, prompts learnt by heart, judges."""

from __future__ import annotations

from grouprl.core.finding import Finding
from grouprl.core.json_types import JsonMapping
from grouprl.monitor import health_codes as codes
from grouprl.monitor.history import HealthFacts, History, percent

NEVER = 20
"""Number of records after which a component that was 0 in all of them may be called never earned."""
FELL, ROSE = 0.05, 0.2
"""Fall of pass@1 that its noise over ten batches does not reach, and rise of the reward in its initial deviations."""
GAP, FEW = 0.25, 32
"""Lead of training prompts over held-out ones that is not luck, from so many held-out completions on: they have a
standard error of at most 0.09.
"""
FLIPS, UNSURE = 0.3, 0.3
"""Shares of pairs: a judge that guesses flips half of them. The levels are ours."""
DRIFTED = 0.1
"""A tenth of the scale from 0 to 1, beyond what the judge differs from itself when it is asked twice at once. Models
behind one name answer the same questions differently within months (arXiv:2307.09009); the level is ours."""
TOLD_APART, TWICE = 0.05, 32
"""Share of texts that were scored twice, and the least number of them. Where a verdict is wrong with chance p, two
differ with 2p(1 - p): 5 % means 2.6 % wrong verdicts, which shrink expected advantages of right and wrong by 5 %."""
COUNTED, GOLD = "#", "gold"
"""The first character of components that are counts, and the name of a true reward that is only measured."""


def unearned_component(past: History, facts: HealthFacts) -> Finding | None:
    """Report a component of the reward that has been 0 on every completion so far."""
    paid = {name: name.removeprefix("reward/") for name in past.names("reward/")}
    several = {name: short for name, short in paid.items() if short != GOLD and not short.startswith(COUNTED)}
    never = [short for name, short in several.items() if past.seen(name) >= NEVER and past.peak(name) == 0]
    if not never or len(several) < 2:
        return None
    least = min(past.seen(f"reward/{short}") for short in never)
    names = " and ".join(f"`{short}`" for short in never)
    words = f"The reward's {names} {'have' if len(never) > 1 else 'has'} been 0 on every completion of {least} steps."
    return codes.UNEARNED_COMPONENT(words, key=f"reward/{never[0]}")


def success_traded(past: History, facts: HealthFacts) -> Finding | None:
    """Report a reward that rises while fewer completions are right."""
    right, was_right = past.mean("pass@1"), past.start("pass@1")
    paid, was_paid, spread = past.mean("reward_mean"), past.start("reward_mean"), past.start("reward_std")
    if right is None or was_right is None or paid is None or was_paid is None or spread is None:
        return None
    if right > was_right - FELL or paid <= was_paid + ROSE * spread:
        return None
    words = f"The reward rose from {was_paid:.3g} to {paid:.3g} while pass@1 fell from {was_right:.2f} to {right:.2f}"
    risen = _risen_most(past)
    return codes.SUCCESS_TRADED(f"{words}; of its components `{risen}` rose most." if risen else f"{words}.")


def _risen_most(past: History) -> str:
    """Return the name of the component whose mean rose most; "" if none rose."""
    rises = {
        name.removeprefix("reward/"): now - start
        for name in past.names("reward/")
        if (now := past.mean(name)) is not None and (start := past.start(name)) is not None
    }
    paid = {name: rise for name, rise in rises.items() if rise > 0 and not name.startswith(COUNTED) and name != GOLD}
    return max(paid, key=lambda name: paid[name], default="")


def learnt_by_heart(past: History, facts: HealthFacts) -> Finding | None:
    """Report training prompts that are solved far more often than held-out ones, by more than at the start."""
    tested = [each for each in past.evaluations if "eval/pass@1" in each and _sampled(each) >= FEW]
    right, was_right = past.mean("pass@1"), past.start("pass@1")
    if len(tested) < 2 or right is None or was_right is None:
        return None
    held_out, before = float(tested[-1]["eval/pass@1"]), float(tested[0]["eval/pass@1"])
    if (right - held_out) - max(0.0, was_right - before) < GAP:
        return None
    words = (
        f"Completions for training prompts are right in {percent(right)}, for held-out ones in {percent(held_out)} "
        f"({percent(was_right)} and {percent(before)} at the start)."
    )
    return codes.LEARNT_BY_HEART(words)


def _sampled(evaluation: JsonMapping) -> int:
    """Return the number of completions of an evaluation."""
    return int(evaluation.get("eval/prompts", 0)) * int(evaluation.get("eval/samples", 0))


def unreliable_judge(past: History, facts: HealthFacts) -> Finding | None:
    """Report a judge whose verdicts turn with the order of a pair, or that decides nothing."""
    flips = past.mean("judge_flips") or 0.0
    unsure = max(past.mean("judge_unsure") or 0.0, past.mean("preferences_abstained") or 0.0)
    if flips < FLIPS and unsure < UNSURE:
        return None
    if flips >= FLIPS:
        words = f"The judge's verdict turns with the order in {percent(flips)} of the pairs; one that guesses: 50 %."
        return codes.UNRELIABLE_JUDGE(words)
    words = f"The judge decides nothing in {percent(unsure)} of what it is asked."
    remedy = "Read its replies, ask for a plainer verdict, or take a larger judge."
    return codes.UNRELIABLE_JUDGE(words, remedy, key="judge_unsure")


def drifting_judge(past: History, facts: HealthFacts) -> Finding | None:
    """Report a judge whose scores of kept completions have moved by more than its noise."""
    moved, noise = past.values("judge_drift")[-1:], past.values("judge_noise")[-1:]
    if not moved or not noise or moved[0] < noise[0] + max(DRIFTED, noise[0]):
        return None
    words = f"The judge's scores of the same completions have moved by {moved[0]:.2g} on average since it was first"
    return codes.DRIFTING_JUDGE(f"{words} asked; asked twice at once, it differed by {noise[0]:.2g}.")


def verifier_noise(past: History, facts: HealthFacts) -> Finding | None:
    """Report texts that got another score when they were scored again."""
    pairs = [(r["verifier_noise"], r["scored_twice"]) for r in past.recent if "verifier_noise" in r]
    twice = sum(count for _, count in pairs)
    differ = sum(share * count for share, count in pairs)
    if twice < TWICE or differ < TOLD_APART * twice:
        return None
    return codes.VERIFIER_NOISE(
        f"{percent(differ / twice)} of {twice:.0f} completions got another score the second time."
    )
