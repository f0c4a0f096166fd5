"""The work of a comparison, told before it begins: its runs, their number, and about how long they take."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from grouprl.core.errors import InputError
from grouprl.core.finding import Finding
from grouprl.experiments.budget import MOST_STEPS, WORDS, Budget
from grouprl.experiments.design import Arm, Comparison, Ground, start_trial
from grouprl.experiments.schedule import Store
from grouprl.experiments.terms import overridden, refuse_other_terms
from grouprl.orchestrator.resolve import task_of
from grouprl.plan.codes import EFFECTS
from grouprl.plan.plan import Plan, plan
from grouprl.rollout.kinds.row_kinds import row_kind

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
    pairs = [(source, arm) for source in design.sources for arm in design.arms]
    for source in design.sources:
        _refuse_twins(source, design.arms)
        _refuse_uncounted(source, design.budget)
    plans = {(s.name, a.label): _checked(s, a, design) for s, a in pairs}
    each = {(s.name, a.label): len(design.grid(s, a)) * design.tune_seeds + design.seeds for s, a in pairs}
    runs = len(design.sources) + sum(each.values())
    rate = _operations_per_second()
    seconds = sum(_operations(design, found[0]) / rate * each[place] for place, found in plans.items())
    minutes = (seconds + START_SECONDS * runs) / 60 / store.workers
    lines = [*_lines(design, store), f"{runs} runs, {store.workers} at a time: about {_time(minutes)} at most"]
    return Preview((*lines, *_warnings(plans), *_idle(design, plans)), runs, minutes)


def _refuse_twins(source: Ground, arms: Sequence[Arm]) -> None:
    """Raise InputError if two arms, however they are written, have the same settings on a source."""
    seen: dict[str, str] = {}
    for arm in arms:
        with _named(source, arm):
            settings = json.dumps(source.config(arm.changes).model_dump(mode="json"), sort_keys=True)
        if settings in seen:
            raise InputError(
                f"'{seen[settings]}' and '{arm.label}' have the same settings on {source.name}",
                "an arm differs from the others",
                "Leave one out",
            )
        seen[settings] = arm.label


def _refuse_uncounted(source: Ground, budget: Budget) -> None:
    """Raise InputError for a budget of sampled tokens where nothing is sampled: no run would ever spend it."""
    if budget.unit == "tokens" and not row_kind(task_of(source.config())).samples:
        raise InputError(
            f"--budget tokens on {source.name}",
            "its rows are stored, and no token is sampled that could be counted",
            "Count others, --budget trained, or --budget steps",
        )


def _checked(source: Ground, arm: Arm, design: Comparison) -> list[Plan]:
    """Return the plans of an arm, one for each combination that is tried."""
    with _named(source, arm):
        tried = [(*arm.changes, *tuned) for tuned in design.grid(source, arm) or [()]]
        for changes in tried:
            refuse_other_terms(source, changes, design.budget)
        found = [plan(source.config((*changes, "run.folder=null"))) for changes in tried]
        for each in found:
            each.raise_if_refused()
    return found


@contextmanager
def _named(source: Ground, arm: Arm) -> Iterator[None]:
    """Name the arm and the source of what is refused."""
    try:
        yield
    except InputError as error:
        raise InputError(f"'{arm.label}' on {source.name} cannot be compared: {error}") from error


def _operations(design: Comparison, found: Plan) -> float:
    """Estimate the operations of a run, from its tokens at their longest."""
    steps = found.batch.steps
    if design.budget.unit == "steps" and design.budget.amount is not None:
        steps = int(design.budget.amount)
    tokens = float(steps * found.batch.tokens_per_rollout)
    if design.budget.unit in ("tokens", "trained") and design.budget.amount is not None:
        tokens = design.budget.amount
    return PRODUCTS * tokens * (found.model.parameters if found.model is not None else 0)


def _operations_per_second() -> float:
    """Return the rate of one core in products of medium size, as measured, times the share that models reach."""
    size, threads = 512, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a = torch.ones(size, size)
        a @ a  # the first product takes longer: its kernel is chosen
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
        if own := overridden(source):
            yield f"note on {source.name}: {', '.join(own)} is not used, as a comparison sets it for every run"
    yield f"budget: {_budget(design)}"
    for source in design.sources:
        where = f" on {source.name}" * (len(design.sources) > 1)
        yield from (f"tuned for {arm.label}{where}: {_grid(design, source, arm)}" for arm in design.arms)
    yield f"compared on seeds 0 to {design.seeds - 1}, paired: a seed has the same prompts for every arm"


def _budget(design: Comparison) -> str:
    budget, unit = design.budget, WORDS[design.budget.unit]
    if budget.unit == "steps":
        return f"{budget.amount:.0f} steps" if budget.amount is not None else "the configured steps"
    amount = str(budget) if budget.amount is not None else f"{unit}, as many as the configured steps come to at first"
    rate = "the learning rate stays constant, because a budget has no last step to fall to"
    return f"{amount}; at most {MOST_STEPS} times the configured steps; {rate}"


def _grid(design: Comparison, source: Ground, arm: Arm) -> str:
    grid = design.grid(source, arm)
    if not grid:
        return "nothing (--no-tune)" if not design.tunes else "nothing, as it is swept"
    return f"{', '.join(' '.join(each) for each in grid)}, on {design.tune_seeds} other seeds each"


def _warnings(plans: Mapping[tuple[str, str], Sequence[Plan]]) -> list[str]:
    """Return the warnings of the plans, each once with the arms that have it; a source without a start is one, too.

    A warning that only some of the tried combinations have is left out: tuning chooses among them.
    """
    said: dict[str, list[str]] = {}
    for (_, arm), found in plans.items():
        shared = set.intersection(*({_kind(each) for each in one.findings} for one in found))
        for finding in found[0].findings:
            if finding.severity == "warning" and _kind(finding) in shared:
                said.setdefault(str(finding), []).append(arm)
    return [f"note on {', '.join(dict.fromkeys(arms))}: {text}" for text, arms in said.items()]


def _idle(design: Comparison, plans: Mapping[tuple[str, str], Sequence[Plan]]) -> Iterator[str]:
    """Say which changes of an arm change nothing in its runs: what differs from the others is then chance."""
    changed = {arm.label: tuple(change.partition("=")[0] for change in arm.changes) for arm in design.arms}
    for (_, arm), found in plans.items():
        told = (each for each in found[0].findings if each.code in EFFECTS and each.key)
        yield from (
            f"note on {arm}: {each}"
            for each in told
            if any(key == each.key or key.startswith(f"{each.key}.") for key in changed[arm])
        )


def _kind(finding: Finding) -> tuple[str, str]:
    """Return what a finding says without its numbers: too low a rate and too high a one have the same code."""
    return finding.code, str(finding).partition(":")[0]


def _time(minutes: float) -> str:
    return f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{max(minutes, 1):.0f} min"
