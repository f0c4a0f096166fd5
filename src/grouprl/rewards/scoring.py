"""Scoring: reward values are checked, split into components, and never silently turned into zeros."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from grouprl.core.errors import InputError, suggest
from grouprl.records.scores import Problem, Scores
from grouprl.rewards.contract import Columns, Reward
from grouprl.rewards.validation import Terms, Verdict, verdicts_of

SHOWN_CHARACTERS = 200


def score(
    reward: Reward,
    completions: Sequence[str],
    columns: Sequence[Columns],
    *,
    ids: Sequence[str],
    weights: Mapping[str, float] | None = None,
    correct_at: float = 1.0,
) -> Scores:
    """Score B completions and check every value.

    Args:
        reward: any form of the contract (`grouprl.rewards.contract`).
        completions: B completions.
        columns: B mappings, the columns of each completion's prompt.
        ids: B names of the samples, for messages.
        weights: weights of components, for a reward that returns a dict without a total; others weigh 1.
        correct_at: a sample without the key "correct" is correct when its total reaches this.

    A dict is a set of components. Its keys "reward" (the total) and "correct" (0 or 1) are not components; without
    "reward" the total is the weighted sum of the components, or "correct" if that is all there is.

    Raises:
        InputError: on arguments of different lengths, a missing column, weights of an unknown component, or weights for
            a reward that returns its own total.
    """
    if not len(completions) == len(columns) == len(ids):
        raise InputError(
            f"score() got {len(completions)} completions, {len(columns)} columns and {len(ids)} ids",
            "each sample needs one of each",
            "Pass lists of equal length",
        )
    verdicts = verdicts_of(reward, completions, columns, ids, Terms(weights, correct_at))
    _check_weights(weights or {}, verdicts)
    return _collect(verdicts, completions, ids)


def _check_weights(weights: Mapping[str, float], verdicts: list[Verdict]) -> None:
    known = {key for verdict in verdicts for key in verdict.components}
    scored = any(verdict.status == "ok" for verdict in verdicts)
    for name, weight in weights.items():
        if not math.isfinite(weight):
            raise InputError(
                f"The weight of component '{name}' is {weight}", "a weight must be a finite number", "For instance 0.5"
            )
        if scored and name not in known:
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
            Problem(sample_id, v.status, v.what, shorten(text), v.trace, v.by)
            for v, text, sample_id in zip(verdicts, completions, ids, strict=True)
            if v.status != "ok"
        ],
        graded=any(v.graded for v in verdicts),
        lost_b=np.array([v.lost for v in verdicts], dtype=np.bool_) if any(v.lost for v in verdicts) else None,
    )


def shorten(text: str) -> str:
    """Return the text, without its middle if it is long."""
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]} … {text[-half:]}"
