"""The conditions behind the findings about the turns of episodes."""

from __future__ import annotations

from grouprl.core.finding import Finding
from grouprl.monitor import health_codes as codes
from grouprl.monitor.history import HealthFacts, History, improved, percent

TURNS_LEFT = 0.6
"""Share of the initial turns; prompts and luck alone move a mean over dozens of episodes by a tenth or two."""
TURNS_SHOWN = 0.6
"""Share of the demonstrations' turns: a policy that imitates them, with mistakes, comes within a quarter."""
RIGHT = 0.9
"""Sampled pass@1 from which the demonstrations took more turns than are needed."""
CALLS_FEW = 0.1
"""Calls of tools per row: nine of ten episodes use none."""
REPEATED = 0.3
"""Share of calls that repeat an earlier one: polling or a retry now and then stays below a tenth."""
SEVERAL = 1.5
"""Mean number of turns from which episodes have turns to lose."""
SPOKEN, SPOKEN_LEFT = 1.0, 0.1
"""Tokens of an agent in an episode that are an action, and the share of them that is left of a silent agent."""


def fewer_turns(past: History, facts: HealthFacts) -> Finding | None:
    """Report episodes that lose their turns although the policy does not get better."""
    now, start = past.mean("turns_mean"), past.start("turns_mean")
    if now is None or start is None or start < SEVERAL or now > TURNS_LEFT * start or improved(past):
        return None
    words = f"Episodes have gone from {start:.1f} to {now:.1f} turns without getting better."
    return codes.FEWER_TURNS(words)


def below_demonstrations(past: History, facts: HealthFacts) -> Finding | None:
    """Report a warmed-up policy whose episodes are far shorter than the demonstrations that it was warmed up on."""
    shown, start = past.demonstrated_turns, past.start("turns_mean")
    if start is None or shown < SEVERAL or start > TURNS_SHOWN * shown or improved(past):
        return None
    if (past.start("pass@1") or 0.0) >= RIGHT:
        return None
    words = f"Episodes began with {start:.1f} turns, the demonstrations of the warm-up have {shown:.1f}."
    return codes.BELOW_DEMONSTRATIONS(words)


def tools_unused(past: History, facts: HealthFacts) -> Finding | None:
    """Report tools that hardly any episode calls, unless answers are right without them."""
    calls = past.mean("calls_mean")
    if calls is None or calls >= CALLS_FEW or (past.mean("pass@1") or 0.0) >= RIGHT:
        return None
    words = f"Tools are announced, and an episode calls {calls:.2g} of them on average."
    return codes.TOOLS_UNUSED(words)


def repeated_calls(past: History, facts: HealthFacts) -> Finding | None:
    """Report calls of tools that are made again in the same episode."""
    share = past.mean("repeated_calls")
    if share is None or share < REPEATED:
        return None
    words = f"{percent(share)} of the calls of tools repeat an earlier call of the same episode, arguments included."
    return codes.REPEATED_CALLS(words)


def silent_agent(past: History, facts: HealthFacts) -> Finding | None:
    """Report an agent that writes hardly anything any more, or has no turns, where it had some at the start."""
    for name in past.names("agent_tokens/"):
        start = max(past.start(name) or 0.0, past.opening(name))  # it may be gone within the first steps
        now = sum(past.values(name)) / len(past.recent)  # a step in which it has no row has no value
        if start >= SPOKEN and now <= SPOKEN_LEFT * start:
            words = f"The agent `{name.partition('/')[2]}` has gone from {start:.1f} to {now:.1f} tokens in an episode."
            return codes.SILENT_AGENT(words, key=name)
    return None
