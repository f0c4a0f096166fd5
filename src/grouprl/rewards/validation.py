"""Validation: the values of a reward are checked and become verdicts; several rewards are combined."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import ClassVar

from grouprl.core.errors import InputError, suggest, writable
from grouprl.records.scores import LARGEST, RULE, By, Status
from grouprl.rewards.contract import (
    Columns,
    Failure,
    Reward,
    call_each,
    call_reward,
    inspect_reward,
    is_async,
    reward_name,
    takes_batch,
)

RESERVED = ("reward", "correct")


@dataclass(frozen=True)
class Verdict:
    """The checked outcome of one sample."""

    status: Status
    reward: float = math.nan
    components: Mapping[str, float] = field(default_factory=dict)
    correct: bool = False
    what: str = ""
    trace: str = ""
    by: By = "reward"
    """The part that failed, if the status is a failure."""
    lost: bool = False
    """Whether an environment hung or ended its process."""
    graded: bool = False
    """Whether the value is graded (not 0, 1 or -1), and the reward gives no "correct" with it."""


@dataclass(frozen=True)
class Terms:
    """The terms on which values of a reward become verdicts."""

    weights: Mapping[str, float] | None = None
    """Weights of the reward's components; None: each counts once."""
    correct_at: float = 1.0
    """The total from which on a sample is correct, unless the reward says so itself."""
    timeout: float | None = None
    """Seconds for each sample; None: those of the workers, without workers no limit."""


TERMS = Terms()


class VerdictReward(ABC):
    """A reward that gives verdicts on many completions at once, usable wherever a reward is."""

    sees_groups: ClassVar[bool] = False
    """Whether it is told the prompt and the group of each completion, and therefore stays in the trainer's process."""

    @abstractmethod
    def verdicts(
        self, completions: Sequence[str], columns: Sequence[Columns], ids: Sequence[str], terms: Terms = TERMS
    ) -> list[Verdict]:
        """Return the checked outcome of every sample; the arguments are as for `verdicts_of`."""

    def notes(self) -> Mapping[str, float]:
        """Return metrics of what the reward did since the last call, and forget them; none by default."""
        return {}

    def __call__(self, completion: str, **columns: object) -> dict[str, float] | None:
        """Return a completion's total as "reward", its components, and "correct"; None if the reward does not apply.

        Raises:
            InputError: if the reward fails.
        """
        verdict = self.verdicts([completion], [columns], ["0"])[0]
        if verdict.status == "not_applicable":
            return None
        if verdict.status != "ok":
            raise InputError(verdict.what)
        return {"reward": verdict.reward, **verdict.components, "correct": float(verdict.correct)}


@dataclass(frozen=True)
class CombinedReward(VerdictReward):
    """Several named rewards and their weights, usable wherever one reward is. Made by `combine`."""

    parts: tuple[tuple[str, Reward, float], ...]
    correct: str
    critical: tuple[str, ...] = ()
    """Parts that veto: if one of them is 0, so is the sum."""

    def verdicts(
        self, completions: Sequence[str], columns: Sequence[Columns], ids: Sequence[str], terms: Terms = TERMS
    ) -> list[Verdict]:
        """Return the weighted sum of the parts for every sample."""
        own = _without_weights(terms)
        by_part = [verdicts_of(part, completions, columns, ids, own) for _, part, _ in self.parts]
        return [_merge(self, list(row)) for row in zip(*by_part, strict=True)]


def plain_rewards(reward: Reward) -> list[Reward]:
    """Return the functions that a reward consists of."""
    if isinstance(reward, CombinedReward):
        return [plain for _, part, _ in reward.parts for plain in plain_rewards(part)]
    return [reward]


def one_by_one(reward: Reward) -> bool:
    """Return whether completions may be scored one by one: no part takes the whole batch or is async."""
    return not any(takes_batch(plain) or is_async(plain) for plain in plain_rewards(reward))


def combine(
    parts: Sequence[tuple[str, Reward, float]], *, correct: str | None = None, critical: Collection[str] = ()
) -> CombinedReward:
    """Return the weighted sum of several rewards; parts that do not apply to a sample are left out of its sum.

    Args:
        parts: (name, reward, weight) each.
        correct: the part whose verdict decides whether a completion is right; by default the first one.
        critical: parts that veto: if one of them is 0, so is the sum (rubric anchors, Huang et al. 2025).

    Raises:
        InputError: on no parts, repeated, reserved or unknown names, or weights that are not finite.
    """
    names = [name for name, _, _ in parts]
    if not names:
        raise InputError("combine() got no rewards", remedy="Give at least one (name, reward, weight).")
    if len(set(names)) < len(names) or set(names) & set(RESERVED):
        raise InputError(
            f"The names of combined rewards are {names}", "they must differ, and none may be 'reward' or 'correct'"
        )
    for name, reward, weight in parts:
        if not isinstance(reward, VerdictReward):
            inspect_reward(reward)
        if not math.isfinite(weight):
            raise InputError(
                f"The weight of reward '{name}' is {weight}", "a weight must be a finite number", "For instance 0.5"
            )
    if correct is not None and correct not in names:
        raise InputError(
            f"There is no reward '{correct}' that could decide what is correct", remedy=suggest(correct, names)
        )
    for name in critical:
        if name not in names:
            raise InputError(f"There is no reward '{name}' that could be critical", remedy=suggest(name, names))
    return CombinedReward(tuple(parts), correct or names[0], tuple(critical))


def verdicts_of(
    reward: Reward,
    completions: Sequence[str],
    columns: Sequence[Columns],
    ids: Sequence[str],
    terms: Terms = TERMS,
) -> list[Verdict]:
    """Return the checked outcome of every sample; `score` gathers them into arrays.

    Async calls are given up after the terms' `timeout`; nothing else can be stopped from inside its own process.
    """
    if isinstance(reward, VerdictReward):
        return reward.verdicts(completions, columns, ids, terms)
    values = call_reward(reward, completions, columns, ids, terms.timeout)
    return [_check(value, reward, terms) for value in values]


def verdicts_each(
    reward: Reward,
    completions: Sequence[str],
    columns: Sequence[Columns],
    ids: Sequence[str],
    terms: Terms = TERMS,
) -> Iterator[Verdict]:
    """Yield the checked outcomes one by one, for rewards that take one completion (`one_by_one`)."""
    if isinstance(reward, CombinedReward):
        own = _without_weights(terms)
        by_part = [verdicts_each(part, completions, columns, ids, own) for _, part, _ in reward.parts]
        for row in zip(*by_part, strict=True):
            yield _merge(reward, list(row))
        return
    for value in call_each(reward, completions, columns, ids):
        yield _check(value, reward, terms)


def _without_weights(terms: Terms) -> Terms:
    if terms.weights:
        raise InputError("A combined reward got weights", "its parts carry their weights", "Set them in combine().")
    return terms


def _check(value: object, reward: Reward, terms: Terms) -> Verdict:
    """Return the verdict for a reward's value; an object that cannot even be inspected is a bad value."""
    try:
        return _read(value, reward, terms)
    except InputError:
        raise
    except Exception as error:
        words = f"reading it raised {type(error).__name__}"
        return Verdict("bad_value", what=f"the reward returned an object of type {type(value).__name__}; {words}")


def _read(value: object, reward: Reward, terms: Terms) -> Verdict:
    if type(value) is float and abs(value) <= LARGEST and not terms.weights:  # by far the most common case
        return Verdict("ok", value, {}, value >= terms.correct_at, graded=_is_graded(value, terms.correct_at))
    if isinstance(value, Failure):
        return Verdict(value.status, what=value.what, trace=value.trace, by=value.by, lost=value.lost)
    if value is None:
        return Verdict("not_applicable", what="the reward returned None (does not apply)")
    named = value if isinstance(value, Mapping) else {"reward": value}
    numbers_by_name: dict[str, float] = {}
    for key, entry in named.items():
        number = _number(entry)
        if isinstance(key, str) and key != writable(key):
            return Verdict("bad_value", what=f"the reward's component {key!r} has half a character in its name")
        if not isinstance(key, str) or number is None:
            return Verdict("bad_value", what=_complaint(key, entry, isinstance(value, Mapping)))
        numbers_by_name[key] = number
    if not numbers_by_name:
        return Verdict("bad_value", what="the reward returned an empty dict")
    return _total(numbers_by_name, reward, terms)


def _total(named: dict[str, float], reward: Reward, terms: Terms) -> Verdict:
    components = {key: number for key, number in named.items() if key not in RESERVED}
    if "reward" in named:
        if terms.weights:
            raise InputError(
                f"Reward '{reward_name(reward)}' got weights, but returns its own total",
                "weights apply to the components of a reward without a total",
                "Leave the weights out, or drop the key 'reward'.",
            )
        total = named["reward"]
    elif components:
        total = sum((terms.weights or {}).get(key, 1.0) * number for key, number in components.items())
    else:
        total = named["correct"]
    if "correct" in named and named["correct"] not in (0.0, 1.0):
        return Verdict("bad_value", what=f"the reward's 'correct' is {named['correct']}, not 0 or 1")
    stated = "correct" in named
    correct = bool(named["correct"]) if stated else total >= terms.correct_at
    return _summed(total, components, correct, not stated and _is_graded(total, terms.correct_at))


def _is_graded(total: float, correct_at: float) -> bool:
    """Return whether a total is graded; a threshold other than the default turns every total into right or wrong."""
    return correct_at == 1.0 and total not in (-1.0, 0.0, 1.0)


def _summed(total: float, components: dict[str, float], correct: bool, graded: bool) -> Verdict:
    if not abs(total) <= LARGEST:
        return Verdict("bad_value", what=f"the sum of the reward's components is {total}, {RULE}")
    return Verdict("ok", total, components, correct, graded=graded)


def _number(value: object) -> float | None:
    """Return the float in a Python, numpy or torch scalar; None if it is not one, or cannot be a reward."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, numbers.Real | Decimal):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):  # a signalling NaN of decimal
        return None
    return number if abs(number) <= LARGEST else None


def _complaint(key: object, value: object, in_dict: bool) -> str:
    where = f"the reward's component {key!r} is" if in_dict else "the reward returned"
    shown = repr(value)[:60]
    return f"{where} {shown} ({type(value).__name__}), {RULE}"


def _merge(reward: CombinedReward, verdicts: list[Verdict]) -> Verdict:
    total, components, correct, graded, applicable, vetoed = 0.0, {}, False, False, False, False
    for (name, _, weight), verdict in zip(reward.parts, verdicts, strict=True):
        if verdict.status == "not_applicable":
            continue
        if verdict.status != "ok":
            return replace(verdict, what=f"in '{name}', {verdict.what}")
        applicable = True
        total += weight * verdict.reward
        vetoed = vetoed or (name in reward.critical and verdict.reward == 0)
        components[name] = verdict.reward
        components |= {f"{name}/{key}": number for key, number in verdict.components.items()}
        if name == reward.correct:
            correct, graded = verdict.correct, verdict.graded
    if not applicable:
        return Verdict("not_applicable", what="none of the combined rewards applies")
    return _summed(0.0 if vetoed else total, components, correct, graded)
