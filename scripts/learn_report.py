"""The record of the learning runs: a table, a figure and the numbers."""

from __future__ import annotations

from typing import Any

Outcome = dict[str, Any]
MARGIN = 0.1
"""How far pass@1 must rise beyond both 95 % intervals."""


def learned(outcome: Outcome) -> bool:
    """Whether the interval after training lies at least MARGIN above the interval before."""
    before, after = outcome["before"], outcome["after"]
    return after["eval/pass@1_low"] >= before["eval/pass@1_high"] + MARGIN


def line(outcome: Outcome) -> str:
    """One line for the terminal."""
    name = f"{outcome['task']:9} {outcome['method']:22} seed {outcome['seed']}"
    if "error" in outcome:
        return f"{name}  {outcome['error']}"
    before, after = outcome["before"]["eval/pass@1"], outcome["after"]["eval/pass@1"]
    verdict = "learned" if learned(outcome) else "did not learn"
    greedy = outcome["after"]["eval/greedy"]
    return f"{name}  {before:.3f} -> {after:.3f} (greedy {greedy:.3f})  {outcome['seconds']:.0f} s  {verdict}"
