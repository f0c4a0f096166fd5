"""The budget that every run of a comparison has, and the listener that ends a run once it is spent."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from grouprl.core.errors import InputError
from grouprl.protocols.run_events import RunBegan, RunListener, StepEnded
from grouprl.storage.run_folder import RunFolder

Unit = Literal["tokens", "trained", "steps", "seconds"]
WORDS: Mapping[Unit, str] = {
    "tokens": "tokens sampled",
    "trained": "tokens trained on",
    "steps": "steps",
    "seconds": "seconds of training steps",
}
MOST_STEPS = 4
"""A run whose budget is not a number of steps ends at so many times the configured steps at the latest."""


@dataclass(frozen=True)
class Budget:
    """The budget of each run; `amount` None: that of the configured steps (see `nominal`).

    Raises:
        InputError: seconds without an amount, which the number of steps does not determine.
    """

    unit: Unit = "tokens"
    amount: float | None = None

    def __post_init__(self) -> None:
        if self.unit == "seconds" and self.amount is None:
            raise InputError("--budget seconds", "an amount has to be given", "Write: --budget seconds=120")

    def __str__(self) -> str:
        amount = "" if self.amount is None else f"{amount_text(self.amount)} "
        return f"{amount}{WORDS[self.unit]}"

    def settings(self, steps: int) -> tuple[str, ...]:
        """Return the changes of settings by which a run of `steps` configured steps may spend the budget."""
        if self.unit == "steps":
            return (f"steps={steps if self.amount is None else int(self.amount)}",)
        return f"steps={MOST_STEPS * steps}", "optim.schedule=constant"


def amount_text(amount: float) -> str:
    """Return an amount as text, fractions only where they matter: seconds may be few."""
    return f"{amount:,.0f}" if amount >= 100 or amount == int(amount) else f"{amount:g}"


def budget_of(text: str) -> Budget:
    """Return the budget of `--budget tokens`, `--budget tokens=400000` or `--budget steps=60`.

    Raises:
        InputError: there is no such unit, or the amount is not a positive number.
    """
    unit, equals, amount = text.partition("=")
    if unit not in get_args(Unit):
        raise InputError(f"--budget {text}", f"units are {', '.join(get_args(Unit))}", "Write: --budget tokens")
    try:
        value = float(amount.replace("_", "").replace(",", "")) if equals else None
    except ValueError:
        value = -1.0
    whole = value is None or unit != "steps" or value.is_integer()
    if value is not None and (not 0 < value < 1e15 or not whole):
        raise InputError(f"--budget {text}", "the amount must be a positive number, and whole for steps")
    return Budget(next(each for each in get_args(Unit) if each == unit), value)


def nominal(steps: int, completions: int, length_mean: float) -> float:
    """Return the tokens of `steps` steps of so many completions of this mean length, to two significant digits."""
    return float(f"{steps * completions * max(length_mean, 1.0):.1e}")


def spent(unit: Unit, records: Iterable[Mapping[str, object]]) -> float:
    """Return what the training steps among the records of metrics.jsonl have spent."""
    return sum(_cost(unit, record) for record in records if record.get("phase") == "train")


def _cost(unit: Unit, record: Mapping[str, object]) -> float:
    names = {"tokens": ("tokens_sampled",), "trained": ("tokens",), "seconds": SECONDS}
    values = (record.get(name, 0.0) for name in names.get(unit, ()))
    return 1.0 if unit == "steps" else sum(float(x) for x in values if isinstance(x, int | float))


SECONDS = ("seconds_rollout", "seconds_score", "seconds_update")
"""Metrics of a step that are its time; they are the machine's, and no two runs have the same."""


class SpendBudget(RunListener):
    """Asks the run to stop, as Ctrl-C does, after the step with which its budget is spent."""

    def __init__(self, budget: Budget) -> None:
        self.budget, self.spent, self.exhausted = budget, 0.0, False

    def begin(self, event: RunBegan) -> None:
        """Count what a resumed run has spent already."""
        self.spent = spent(self.budget.unit, RunFolder(event.folder).read_metrics())
        self._stop_if_exhausted()

    def step(self, event: StepEnded) -> None:
        """Count a step of training."""
        if event.phase == "train":
            self.spent += spent(self.budget.unit, [event.record])
            self._stop_if_exhausted()

    def _stop_if_exhausted(self) -> None:
        if self.budget.unit != "steps" and self.budget.amount and self.spent >= self.budget.amount:
            if not self.exhausted:
                signal.raise_signal(signal.SIGINT)
            self.exhausted = True
