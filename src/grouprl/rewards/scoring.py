"""Scoring: reward values checked, split into components, and never silently turned into zeros."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grouprl.errors import InputError, suggest
from grouprl.rewards.contract import Columns, Failure, Reward, call_reward, inspect_reward, reward_name

Status = Literal["ok", "not_applicable", "error", "bad_value"]
RESERVED = ("reward", "correct")
SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class Problem:
    """Why one sample has no reward."""

    sample_id: str
    status: Status
    what: str
    completion: str
    trace: str = ""

    def __str__(self) -> str:
        return f"sample {self.sample_id}: {self.what} (answer: {self.completion!r})"


@dataclass(frozen=True)
class Scores:
    """The verdicts on B samples.

    `reward_b` is float64 [B] and NaN exactly where `status_b` is not "ok"; `components` holds float64 [B] per named
    component, NaN where a sample lacks it; `correct_b` is bool [B], the raw outcome; `status_b` is [B] of `Status`.
    """

    reward_b: NDArray[np.float64]
    components: dict[str, NDArray[np.float64]]
    correct_b: NDArray[np.bool_]
    status_b: NDArray[np.str_]
    problems: list[Problem]

    @property
    def ok_b(self) -> NDArray[np.bool_]:
        """Which samples have a reward: bool [B]."""
        return self.status_b == "ok"

    @property
    def failed_b(self) -> NDArray[np.bool_]:
        """Which samples the reward failed on, by raising or by an unusable value: bool [B]."""
        return (self.status_b == "error") | (self.status_b == "bad_value")


@dataclass(frozen=True)
class Verdict:
    """The checked outcome of one sample."""

    status: Status
    reward: float = math.nan
    components: Mapping[str, float] = field(default_factory=dict)
    correct: bool = False
    what: str = ""
    trace: str = ""


@dataclass(frozen=True)
class CombinedReward:
    """Several named rewards and their weights, usable wherever one reward is. Made by `combine`."""

    parts: tuple[tuple[str, Reward, float], ...]
    correct: str

    def __call__(self, completion: str, **columns: Any) -> dict[str, float] | None:
        """Score one answer: the total as "reward", each part by its name, and "correct".

        Raises:
            InputError: if a part fails.
        """
        verdict = judge(self, [completion], [columns], ["0"])[0]
        if verdict.status == "not_applicable":
            return None
        if verdict.status != "ok":
            raise InputError(verdict.what)
        return {"reward": verdict.reward, **verdict.components, "correct": float(verdict.correct)}


def combine(parts: Sequence[tuple[str, Reward, float]], *, correct: str | None = None) -> CombinedReward:
    """Return the weighted sum of several rewards; parts that do not apply to a sample are left out of its sum.

    Args:
        parts: (name, reward, weight) each.
        correct: the part whose verdict says whether an answer is right; the first one if not given.

    Raises:
        InputError: on no parts, repeated or reserved names, weights that are not finite.
    """
    names = [name for name, _, _ in parts]
    if not names:
        raise InputError("combine() got no rewards", remedy="Give at least one (name, reward, weight).")
    if len(set(names)) < len(names) or set(names) & set(RESERVED):
        raise InputError(f"The names of combined rewards are {names}", "they differ, and none is 'reward' or 'correct'")
    for name, reward, weight in parts:
        if not isinstance(reward, CombinedReward):
            inspect_reward(reward)
        if not math.isfinite(weight):
            raise InputError(f"The weight of reward '{name}' is {weight}", "a weight is a finite number")
    if correct is not None and correct not in names:
        raise InputError(f"There is no reward '{correct}' to say what is correct", remedy=suggest(correct, names))
    return CombinedReward(tuple(parts), correct or names[0])


def score(
    reward: Reward,
    completions: Sequence[str],
    columns: Sequence[Columns],
    *,
    ids: Sequence[str],
    weights: Mapping[str, float] | None = None,
    correct_at: float = 1.0,
) -> Scores:
    """Score B answers and check every value.

    Args:
        reward: any form of the contract (`grouprl.rewards.contract`).
        completions: B answers.
        columns: B mappings, the columns of each answer's question.
        ids: B names, by which messages speak of the samples.
        weights: of components, for a reward that returns a dict without a total; a component not named weighs 1.
        correct_at: a sample without the key "correct" is correct when its total reaches this.

    A dict is a set of components. Its keys "reward" (the total) and "correct" (0 or 1) are not components; without
    "reward" the total is the weighted sum of the components, or "correct" if that is all there is.

    Raises:
        InputError: on arguments of different lengths, a column the reward needs and a sample lacks, weights that
            name no component or that meet a reward with a total of its own.
    """
    if not len(completions) == len(columns) == len(ids):
        raise InputError(
            f"score() got {len(completions)} completions, {len(columns)} columns and {len(ids)} ids",
            "each sample has one of each",
        )
    verdicts = judge(reward, completions, columns, ids, weights or {}, correct_at)
    _check_weights(weights or {}, verdicts)
    return _collect(verdicts, completions, ids)


def judge(
    reward: Reward,
    completions: Sequence[str],
    columns: Sequence[Columns],
    ids: Sequence[str],
    weights: Mapping[str, float] | None = None,
    correct_at: float = 1.0,
) -> list[Verdict]:
    """Return the checked outcome of every sample; `score` gathers them into arrays."""
    if isinstance(reward, CombinedReward):
        if weights:
            raise InputError("A combined reward got weights", "its parts carry their weights", "Set them in combine().")
        judged = [judge(part, completions, columns, ids, None, correct_at) for _, part, _ in reward.parts]
        return [_merge(reward, list(row)) for row in zip(*judged, strict=True)]
    values = call_reward(reward, completions, columns, ids)
    return [_check(value, reward, weights or {}, correct_at) for value in values]


def _check(value: Any, reward: Reward, weights: Mapping[str, float], correct_at: float) -> Verdict:
    if isinstance(value, Failure):
        return Verdict("error" if value.trace else "bad_value", what=value.what, trace=value.trace)
    if value is None:
        return Verdict("not_applicable", what="the reward returned None (does not apply)")
    named = value if isinstance(value, Mapping) else {"reward": value}
    numbers_by_name: dict[str, float] = {}
    for key, entry in named.items():
        number = _number(entry)
        if not isinstance(key, str) or number is None:
            return Verdict("bad_value", what=_complaint(key, entry, isinstance(value, Mapping)))
        numbers_by_name[key] = number
    if not numbers_by_name:
        return Verdict("bad_value", what="the reward returned an empty dict")
    return _total(numbers_by_name, reward, weights, correct_at)


def _total(named: dict[str, float], reward: Reward, weights: Mapping[str, float], correct_at: float) -> Verdict:
    components = {key: number for key, number in named.items() if key not in RESERVED}
    if "reward" in named:
        if weights:
            raise InputError(
                f"Reward '{reward_name(reward)}' got weights, but returns its own total",
                "weights apply to the components of a reward without a total",
                "Leave the weights out, or drop the key 'reward'.",
            )
        total = named["reward"]
    elif components:
        total = sum(weights.get(key, 1.0) * number for key, number in components.items())
    else:
        total = named["correct"]
    if "correct" in named and named["correct"] not in (0.0, 1.0):
        return Verdict("bad_value", what=f"the reward's 'correct' is {named['correct']}, not 0 or 1")
    correct = bool(named["correct"]) if "correct" in named else total >= correct_at
    return Verdict("ok", total, components, correct)


def _number(value: Any) -> float | None:
    """Return the finite float in a Python, numpy or torch scalar; None if there is none."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _complaint(key: Any, value: Any, in_dict: bool) -> str:
    where = f"the reward's component {key!r} is" if in_dict else "the reward returned"
    shown = repr(value)[:60]
    return f"{where} {shown} ({type(value).__name__}), not a finite number"


def _merge(reward: CombinedReward, verdicts: list[Verdict]) -> Verdict:
    total, components, correct, applicable = 0.0, {}, False, False
    for (name, _, weight), verdict in zip(reward.parts, verdicts, strict=True):
        if verdict.status == "not_applicable":
            continue
        if verdict.status != "ok":
            return replace(verdict, what=f"in '{name}', {verdict.what}")
        applicable = True
        total += weight * verdict.reward
        components[name] = verdict.reward
        components |= {f"{name}/{key}": number for key, number in verdict.components.items()}
        correct = correct or (name == reward.correct and verdict.correct)
    if not applicable:
        return Verdict("not_applicable", what="none of the combined rewards applies")
    return Verdict("ok", total, components, correct)


def _check_weights(weights: Mapping[str, float], verdicts: list[Verdict]) -> None:
    known = {key for verdict in verdicts for key in verdict.components}
    judged = any(verdict.status == "ok" for verdict in verdicts)
    for name, weight in weights.items():
        if not math.isfinite(weight):
            raise InputError(f"The weight of component '{name}' is {weight}", "a weight is a finite number")
        if judged and name not in known:
            raise InputError(
                f"The weights name '{name}', but the reward returns no such component",
                remedy=suggest(name, known) if known else "The reward returns a single number.",
            )


def _collect(verdicts: list[Verdict], completions: Sequence[str], ids: Sequence[str]) -> Scores:
    names = list(dict.fromkeys(key for verdict in verdicts for key in verdict.components))
    return Scores(
        reward_b=np.array([v.reward for v in verdicts], dtype=np.float64),
        components={n: np.array([v.components.get(n, math.nan) for v in verdicts], dtype=np.float64) for n in names},
        correct_b=np.array([v.correct for v in verdicts], dtype=np.bool_),
        status_b=np.array([v.status for v in verdicts], dtype="<U14"),
        problems=[
            Problem(sample_id, v.status, v.what, shorten(text), v.trace)
            for v, text, sample_id in zip(verdicts, completions, ids, strict=True)
            if v.status != "ok"
        ],
    )


def shorten(text: str) -> str:
    """Return the text, its middle left out if it is long."""
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]} … {text[-half:]}"
