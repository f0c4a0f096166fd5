"""The condition behind the finding on variables of a chat template that conversations set differently."""

from __future__ import annotations

from grouprl.core.finding import Finding
from grouprl.monitor import health_codes as codes
from grouprl.monitor.history import START, HealthFacts, History, percent

APART, FEW = 0.5, 16
"""Difference of two shares that luck does not make: of so many held-out prompts one half has a standard error of 0.125.
Settings differ by design of the data, mostly in all rows or in none."""
MIXED = 0.05
"""Share of the rows that are set otherwise, below which it may be a row or two of the data."""


def template_variables(past: History, facts: HealthFacts) -> Finding | None:
    """Report template variables that differ between training and evaluation, or else between rows of training."""
    if past.count < START:
        return None
    trained = {name: sum(past.values(name)) / len(past.recent) for name in past.names("template/")}
    held_out = _held_out(past)
    apart = {name: abs(trained.get(name, 0.0) - share) for name, share in held_out.items()}
    if apart and max(apart.values()) >= APART:
        name = max(apart, key=lambda each: apart[each])
        shares = f"{percent(trained.get(name, 0.0))} of the conversations in training and in {percent(held_out[name])}"
        return codes.TEMPLATE_VARIABLES(f"{_setting(name)} is set in {shares} of the held-out ones.", key=name)
    mixed = next((name for name, share in trained.items() if MIXED <= share <= 1 - MIXED), "")
    if not mixed:
        return None
    words = (
        f"{_setting(mixed)} is set in {percent(trained[mixed])} of the conversations in training, and not in others."
    )
    remedy = "Where that is not meant, set it alike in all rows, or once for all: model.chat_template_kwargs."
    return codes.TEMPLATE_VARIABLES(words, remedy, key=mixed, severity="note")


def _held_out(past: History) -> dict[str, float]:
    """Return the share of each setting in the last evaluation, 0 for those that it lacks; {} without one."""
    tested = next((each for each in reversed(past.evaluations) if each.get("eval/prompts", 0) >= FEW), None)
    if tested is None:
        return {}
    own = {name.removeprefix("eval/"): float(x) for name, x in tested.items() if name.startswith("eval/template/")}
    return dict.fromkeys(past.names("template/"), 0.0) | own


def _setting(name: str) -> str:
    variable, _, value = name.removeprefix("template/").partition("/")
    return f"The template's variable `{variable}`, as `{value}`,"
