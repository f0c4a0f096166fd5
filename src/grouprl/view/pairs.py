"""Pairs of compared rows on the page: how far apart the policy, or the reward model, keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grouprl.core.json_types import JsonObject
from grouprl.core.outputs import PREFERENCE


def is_pair(ranked: Sequence[JsonObject]) -> bool:
    """Return whether the rows of a group, best first, are two that were compared, one better than the other."""
    if len(ranked) != 2:
        return False
    better, worse = (row.get("reward") for row in ranked)
    return better is not None and worse is not None and better > worse


def pair_of(ranked: Sequence[JsonObject]) -> JsonObject | None:
    """Return the margins of a pair, the better row first; None for other groups.

    `log_ratio` is that of log π/π_ref in nats, `score` that of a reward model's scores, and `scores` are those of its
    attributes by name; `right` says whether the model gives the better row the higher score. None where they are not
    stored.
    """
    if not is_pair(ranked):
        return None
    score = score_margin(*ranked)
    named = [_attributes(row) for row in ranked]
    return {
        "log_ratio": _log_ratio_margin(*ranked),
        "score": score,
        "scores": {name: value - named[1][name] for name, value in named[0].items() if name in named[1]},
        "right": None if score is None else score > 0,
    }


def score_margin(better: JsonObject, worse: JsonObject) -> float | None:
    """Return by how much a reward model prefers the better row: the difference of scores, or the skew score of vectors;
    None where they are not stored.
    """
    first, second = better.get("score"), worse.get("score")
    if first is not None and second is not None:
        return float(first) - float(second)
    one, other = _vector(better), _vector(worse)
    if not one or len(one) != len(other):
        return None
    blocks = zip(one[::2], one[1::2], other[::2], other[1::2], strict=True)
    return sum(a * d - b * c for a, b, c, d in blocks)


def pair_words(better: JsonObject, worse: JsonObject) -> str:
    """Return in words how far apart the rows of a pair are kept, by log π/π_ref and by scores."""
    found = pair_of([better, worse])
    assert found is not None
    words = "a pair, the better completion first"
    if found["log_ratio"] is not None:
        first, second = _gain(better), _gain(worse)
        words += f": log π/π_ref {first:+.3g} and {second:+.3g}, margin {found['log_ratio']:+.3g} nats"
    if found["score"] is not None:
        verdict = "the model has it right" if found["right"] else "the model has it wrong"
        words += f": margin of scores {found['score']:+.3g}, {verdict}"
    return words


def score_words(row: JsonObject) -> list[str]:
    """Return the scores that a reward model gave a row: the whole one, and those of attributes by name."""
    whole = [] if row.get("score") is None else [f"score {row['score']:.3g}"]
    return whole + [f"{name} {value:.3g}" for name, value in _attributes(row).items()]


def named_scores(row: JsonObject) -> Mapping[str, float]:
    """Return the numbers that a reward model gave a row by name: attributes, or coordinates of a vector."""
    return dict(row.get("scores") or ())


def _attributes(row: JsonObject) -> Mapping[str, float]:
    return {name: value for name, value in named_scores(row).items() if not name.startswith(PREFERENCE)}


def _vector(row: JsonObject) -> list[float]:
    return [value for name, value in named_scores(row).items() if name.startswith(PREFERENCE)]


def _log_ratio_margin(better: JsonObject, worse: JsonObject) -> float | None:
    return _gain(better) - _gain(worse) if better.get("log_ratio") and worse.get("log_ratio") else None


def _gain(row: JsonObject) -> float:
    return float(sum(row["log_ratio"]))
