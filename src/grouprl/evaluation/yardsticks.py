"""Yardsticks of an evaluation besides the reward (`eval.metrics`): functions of a reward's form that pay nothing.

A policy that has learned to please its reward looks good by it; a yardstick that is not part of the reward shows
whether it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from grouprl.core.errors import InputError, RunError
from grouprl.evaluation.gain import SUFFIXES
from grouprl.records.examples import Example
from grouprl.rewards import Reward
from grouprl.rewards.catalogue.loading import load_reward
from grouprl.rewards.contract import reward_name
from grouprl.rewards.scoring import score

Texts = Sequence[str]
Measured = Mapping[str, NDArray[np.float64]]
"""[B] values by the name of the yardstick."""


def load_yardsticks(specs: Sequence[str]) -> dict[str, Reward]:
    """Return the functions that `eval.metrics` names, by their own names.

    Raises:
        InputError: one cannot be found or called, or two have the same name.
    """
    found = [(reward_name(function), function) for function in map(load_reward, specs)]
    twice = [name for n, (name, _) in enumerate(found) if name in {other for other, _ in found[:n]}]
    if twice:
        raise InputError(f"eval.metrics names '{twice[0]}' twice", "each is recorded as eval/metric/NAME", "Rename one")
    _check_endings([name for name, _ in found])
    return dict(found)


def _check_endings(names: Sequence[str]) -> None:
    """Refuse a name under which the record has the interval or the gain of another yardstick."""
    for name in names:
        plain = name
        while ending := next((each for each in SUFFIXES if plain.endswith(each)), ""):
            plain = plain.removesuffix(ending)
            if plain in names:
                raise InputError(
                    f"eval.metrics names '{plain}' and '{name}'",
                    f"eval/metric/{name} is where the record has the interval or the gain of '{plain}'",
                    "Rename one",
                )


def measure(yardsticks: Mapping[str, Reward], examples: Sequence[Example], texts: Texts) -> Measured:
    """Return [B] the value of each completion by each yardstick; NaN where one does not apply to it (None).

    Raises:
        RunError: a yardstick raised, or returned something that is not a number.
    """
    return {name: _values(name, function, examples, texts) for name, function in yardsticks.items()}


def _values(name: str, function: Reward, examples: Sequence[Example], texts: Texts) -> NDArray[np.float64]:
    columns = [{key: _own(value) for key, value in each.columns.items()} for each in examples]
    scores = score(function, texts, columns, ids=[each.id for each in examples])
    if scores.failed_b.any():
        raise RunError(f"eval.metrics: '{name}' failed. {scores.problems[0]}")
    return scores.reward_b


def _own(value: object) -> object:
    """Return a copy of what a yardstick could change, and with it the answers that the reward reads."""
    return deepcopy(value) if isinstance(value, (list, dict, set)) else value
