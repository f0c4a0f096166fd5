"""The best evaluation of a run by one measure (`eval.best`), whose checkpoint is kept."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from grouprl.evaluation.evaluate import Evaluation


@dataclass(frozen=True)
class Best:
    """The evaluation with the largest mean so far; of equal ones the first."""

    measure: str
    """Name of the measure in the record, without `eval/`: "pass@1", "metric/useful"."""
    step: int
    """Number of finished steps, which names the checkpoint."""
    value: float
    low: float
    high: float
    """Ends of the 95 % interval of `value`."""
    prompts: int
    """Number of held-out prompts in the mean: those that have a value."""
    asked: int = 0
    """Number of held-out prompts that were looked at; 0: not known."""

    def as_json(self) -> JsonObject:
        """Return the record as JSON; ends at infinity, of a measure without bounds on one prompt, are null."""
        return {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in asdict(self).items()}

    @classmethod
    def from_json(cls, data: JsonMapping) -> Best:
        """Read what `as_json` returned."""
        ends = {name: each if data[name] is None else data[name] for name, each in NO_ENDS.items()}
        return cls(**{**data, **ends})

    def words(self) -> str:
        """Say in one sentence which checkpoint is the best."""
        part = f" of {self.asked}" if self.prompts < self.asked else ""
        mean = f"{self.value:.4g} on {self.prompts}{part} prompts"
        return f"best by {self.measure}: step {self.step} ({mean}), --checkpoint best"


NO_ENDS = {"low": -math.inf, "high": math.inf}


def best_of(held: Best | None, found: Evaluation, name: str, step: int, prompts: int) -> Best | None:
    """Return the better of the best so far and the evaluation `found` after `step` steps.

    All evaluations of a run begin with the same held-out prompts, and only the first `prompts` of them count: an
    evaluation of more prompts is not better because of others. The mean is over those prompts that have a value: a
    component of the reward may be missing from some. An evaluation that knows none is never the best.

    Raises:
        InputError: the evaluation has no measure of this name.
    """
    if _component(name) and name.removeprefix("eval/") not in found.by_prompt:
        return held
    measure = _measure(name, found.by_prompt)
    values = found.by_prompt[measure]
    count = min(prompts, len(values.values))
    first = values.only(np.isfinite(values.value_q[:count]))
    if not first.values:
        return held
    mean = first.estimate()
    if held is not None and held.measure == measure and mean.value <= held.value:
        return held
    return Best(measure, step, mean.value, mean.low, mean.high, len(first.values), count)


def check_measure(name: str, known: Sequence[str]) -> None:
    """Check before a run that its evaluations can have a measure of this name; "" is none.

    Components of the reward ("reward/…") are checked where the reward has been tried.

    Raises:
        InputError: they cannot.
    """
    if name and not ("reward" in known and _component(name)):
        _measure(name, known)


def _component(name: str) -> bool:
    return name.removeprefix("eval/").startswith("reward/")


def measures(yardsticks: Collection[str], k: Sequence[int], *, ranks: bool, samples: bool) -> list[str]:
    """Return the measures of a run's evaluations of which the largest mean is the best.

    Args:
        yardsticks: names of `eval.metrics`.
        k: numbers of `eval.k`.
        ranks: whether a reward model is trained; its loss and its preferences of length and style are not aims.
        samples: whether evaluations sample completions, and do not only take the likeliest one of those stored.
    """
    if ranks:
        return ["pair_accuracy"]
    sampled = [f"pass@{each}" for each in k] if samples else []
    return [*(f"metric/{each}" for each in yardsticks), "reward", "greedy", "greedy_reward", *sampled]


def _measure(name: str, known: Collection[str]) -> str:
    """Return the measure that is meant: a yardstick by its own name, any other as in the record."""
    plain = name.removeprefix("eval/")
    found = next((each for each in (f"metric/{plain}", plain) if each in known), None)
    if found is None:
        names = [each.removeprefix("metric/") for each in known]
        raise InputError(
            f"eval.best = {name}", "it must name a measure of the run's own evaluations", suggest(plain, names)
        )
    return found
