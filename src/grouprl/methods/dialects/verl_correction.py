"""verl's corrections for a sampler that differs from the trainer, by their settings there."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.filter.mismatch_rejection import MismatchRejection, Over, Statistic
from grouprl.algorithms.method import Method
from grouprl.algorithms.token_weight.importance import MaskedImportance, TruncatedImportance
from grouprl.core.errors import InputError, suggest

RolloutIS = Literal["token", "sequence"] | None
RolloutRS = str | None
ImportanceThreshold = Annotated[float, Field(gt=0)] | str
RejectionThreshold = ImportanceThreshold | None
SOURCES = {
    "rollout_is": "AlgoConfig.rollout_correction: none; set, RolloutCorrectionConfig.rollout_is is 'sequence' there. "
    "With a rejection of tokens verl's product over a completion counts these tokens too",
    "rollout_is_threshold": "RolloutCorrectionConfig.rollout_is_threshold: a number truncates, 'lower_upper' masks",
    "rollout_rs": "RolloutCorrectionConfig.rollout_rs: an option, or several between commas, all of which must pass",
    "rollout_rs_threshold": "RolloutCorrectionConfig.rollout_rs_threshold: a number, or 'lower_upper' for k1; one "
    "for all options, or one for each between commas",
}
"""Origins of the defaults of verl's settings."""
_OVER: dict[str, Over] = {
    "token": "token",
    "seq_sum": "sequence_sum",
    "seq_mean": "sequence_mean",
    "seq_max": "sequence_max",
}
_STATISTIC: dict[str, Statistic] = {"k1": "k1", "k2": "k2", "k3": "k3"}
OPTIONS = tuple(
    f"{over}_{statistic}" for over in _OVER for statistic in _STATISTIC if (over, statistic) != ("seq_max", "k1")
)
"""verl's options of `rollout_rs`."""


def corrected_as_in_verl(
    method: Method,
    *,
    rollout_is: RolloutIS = None,
    rollout_is_threshold: ImportanceThreshold = 2.0,
    rollout_rs: RolloutRS = None,
    rollout_rs_threshold: RejectionThreshold = None,
) -> Method:
    """Add verl's weights and rejection.

    Raises:
        InputError: a rejection lacks one of its two settings, an option is unknown, or a threshold is not a number.
    """
    if (rollout_rs is None) != (rollout_rs_threshold is None):
        raise InputError(
            f"rollout_rs = {rollout_rs} with rollout_rs_threshold = {rollout_rs_threshold}",
            "verl rejects with both or with neither",
            "Set both, for instance seq_mean_k3 and 0.01",
        )
    weight = () if rollout_is is None else (_weight(rollout_is, rollout_is_threshold),)
    rejected = () if rollout_rs is None else _rejections(rollout_rs, str(rollout_rs_threshold))
    return method.with_parts(filter=(*method.filter, *rejected), token_weight=(*method.token_weight, *weight))


def _weight(rollout_is: str, threshold: ImportanceThreshold) -> TruncatedImportance | MaskedImportance:
    level: Literal["token", "sequence_sum"] = "token" if rollout_is == "token" else "sequence_sum"
    low, high = _bounds("rollout_is_threshold", str(threshold))
    return (
        TruncatedImportance(high=high, level=level)
        if low is None
        else MaskedImportance(low=low, high=high, level=level)
    )


def _rejections(options: str, thresholds: str) -> tuple[MismatchRejection, ...]:
    """Return the rejections of all options; those of completions come first, so that each sees every token."""
    names, bounds = list(dict.fromkeys(_listed(options))), _listed(thresholds)
    if unknown := [name for name in names or [options] if name not in OPTIONS]:
        raise InputError(f"rollout_rs = {options!r}", "all of its options must be verl's", suggest(unknown[0], OPTIONS))
    if len(bounds) not in (1, len(names)):
        raise InputError(
            f"rollout_rs_threshold = {thresholds!r} for {len(names)} options of rollout_rs",
            "there must be one for all, or one for each",
        )
    pairs = zip(names, bounds * len(names) if len(bounds) == 1 else bounds, strict=True)
    return tuple(_rejection(*pair) for pair in sorted(pairs, key=lambda pair: pair[0].startswith("token")))


def _rejection(option: str, threshold: str) -> MismatchRejection:
    over, _, statistic = option.rpartition("_")
    low, high = _bounds("rollout_rs_threshold", threshold)
    return MismatchRejection(statistic=_STATISTIC[statistic], over=_OVER[over], low=low, high=high)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _bounds(setting: str, threshold: str) -> tuple[float | None, float]:
    """Return the bounds in a threshold of verl's: a number, or 'lower_upper'."""
    try:
        *low, high = (float(part) for part in threshold.split("_"))
    except ValueError:
        low, high = [], math.nan
    if len(low) > 1 or not all(bound > 0 for bound in (*low, high)):
        raise InputError(f"{setting} = {threshold!r}", "it must be a positive number or two of them, 'lower_upper'")
    return (low[0] if low else None), high
