"""The work of a comparison, told before it begins: its runs, their number, and about how long they take."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from grouprl.core.errors import InputError
from grouprl.experiments.budget import MOST_STEPS, WORDS
from grouprl.experiments.design import Arm, Comparison, Ground, start_trial
from grouprl.experiments.schedule import Store
from grouprl.plan.plan import Plan, plan

START_SECONDS = 12.0
"""Seconds in which a process loads its libraries, evaluates before and after, and writes its model."""
PRODUCTS = 10
"""Operations per parameter and token of a run: 2 to sample it, 2 for its old log-prob, 6 to train on it."""
SHARE = 0.2
"""Share of the rate of large products that a small model reaches on a CPU."""


@dataclass(frozen=True)
class Preview:
    """The numbers of a comparison that has not begun."""

    lines: tuple[str, ...]
    runs: int
    minutes: float
    """Estimated for completions of the greatest length; a run that is kept already takes none."""

    def __str__(self) -> str:
        return "\n".join(self.lines)


def preview(design: Comparison, store: Store) -> Preview:
    """Resolve and check every arm on every source, and say what will be run.

    Raises:
        InputError: an arm cannot work on a source; the message names both.
    """
    plans = {(s.name, a.label): _checked(s, a, design.grid(a)) for s in design.sources for a in design.arms}
    each = {arm.label: len(design.grid(arm)) * design.tune_seeds + design.seeds for arm in design.arms}
    runs = len(design.sources) * (1 + sum(each.values()))
    rate = _operations_per_second()
    seconds = sum(_operations(design, found) / rate * each[arm] for (_, arm), found in plans.items())
    minutes = (seconds + START_SECONDS * runs) / 60 / store.workers
    lines = [*_lines(design, store), f"{runs} runs, {store.workers} at a time: about {_time(minutes)} at most"]
    return Preview((*lines, *_warnings(plans)), runs, minutes)


def _checked(source: Ground, arm: Arm, grid: list[tuple[str, ...]]) -> Plan:
    """Return the plan of an arm; what is tuned changes numbers only, so that of the first combination."""
    try:
        for tuned in grid:
            source.config((*arm.changes, *tuned))
        found = plan(source.config((*arm.changes, *(grid[0] if grid else ()), "run.folder=null")))
        found.raise_if_refused()
    except InputError as error:
        raise InputError(f"'{arm.label}' on {source.name} cannot be compared: {error}") from error
    return found


def _operations(design: Comparison, found: Plan) -> float:
    """Estimate the operations of a run, from its tokens at their longest."""
    steps = found.batch.steps
    if design.budget.unit == "steps" and design.budget.amount is not None:
        steps = int(design.budget.amount)
    tokens = float(steps * found.batch.tokens_per_rollout)
    if design.budget.unit in ("tokens", "trained") and design.budget.amount is not None:
        tokens = design.budget.amount
    return PRODUCTS * tokens * (found.model.parameters if found.model is not None else 0)


def _operations_per_second(size: int = 512) -> float:
    """Measure what one core of this machine makes of products that are not large, in the share that models reach."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a = torch.ones(size, size)
        a @ a
        began = time.perf_counter()
        for _ in range(4):
            a @ a
        return SHARE * 4 * 2 * size**3 / max(time.perf_counter() - began, 1e-6)
    finally:
        torch.set_num_threads(threads)


def _lines(design: Comparison, store: Store) -> Iterator[str]:
    """Yield the terms of the comparison."""
    yield f"arms: {', '.join(arm.label for arm in design.arms)}; each against {design.reference.label}"
    for source in design.sources:
        config, known = source.config(), store.known(start_trial(source)) is not None
        warm = f"{config.warmup.steps} steps of warm-up" if config.warmup.steps else "its model as it is"
        yield f"{source.name}: all start from {warm}, one for all{' (kept already)' if known else ''}"
    yield f"budget: {_budget(design)}"
    for arm in design.arms:
        yield f"tuned for {arm.label}: {_grid(design, arm)}"
    yield f"compared on seeds 0 to {design.seeds - 1}, paired: a seed has the same prompts for every arm"


def _budget(design: Comparison) -> str:
    budget, unit = design.budget, WORDS[design.budget.unit]
    if budget.unit == "steps":
        return f"{budget.amount:.0f} steps" if budget.amount is not None else "the configured steps"
    amount = str(budget) if budget.amount is not None else f"{unit}, as many as the configured steps come to at first"
    rate = "the learning rate stays constant, because a budget has no last step to fall to"
    return f"{amount}; at most {MOST_STEPS} times the configured steps; {rate}"


def _grid(design: Comparison, arm: Arm) -> str:
    grid = design.grid(arm)
    if not grid:
        return "nothing (--no-tune)" if not design.tune else "nothing, as it is swept"
    return f"{', '.join(' '.join(each) for each in grid)}, on {design.tune_seeds} other seeds each"


def _warnings(plans: Mapping[tuple[str, str], Plan]) -> list[str]:
    """Return the warnings of the plans, each once with the arms that have it; a source without a start is one, too."""
    said: dict[str, list[str]] = {}
    for (_, arm), found in plans.items():
        for finding in found.findings:
            if finding.severity == "warning":
                said.setdefault(str(finding), []).append(arm)
    return [f"note on {', '.join(dict.fromkeys(arms))}: {text}" for text, arms in said.items()]


def _time(minutes: float) -> str:
    return f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{max(minutes, 1):.0f} min"
