"""The learning curves of the page, and their titles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping
from grouprl.core.numbers import is_number
from grouprl.evaluation.gain import SUFFIXES
from grouprl.monitor.glossary import lookup
from grouprl.monitor.reward_detectors import COUNTED
from grouprl.view.charts import NARROW, Series, at_each_width, chart
from grouprl.view.runfiles import Column, RunData


@dataclass(frozen=True)
class Picture:
    """One chart: its title, its metrics with their short names, and the phase of their records.

    `about` is the metric whose glossary entry explains the chart; by default it is the first metric of the chart.
    """

    title: str
    metrics: Mapping[str, str]
    floor: float | None = 0.0
    phase: str = "train"
    about: str = ""


PART = "eval/reward/"
"""Beginning of the metrics of a reward's held-out components."""
YARDSTICK = "eval/metric/"
"""Beginning of the metrics of `eval.metrics`."""
COLOURS = 8
"""Largest number of curves of a chart that readers can distinguish."""
SHOWN_AGES = 5
"""Number of token ages, in steps from 0, that share a chart; each higher age has a chart under further metrics."""
PICTURES = (
    Picture("Reward", {"reward_mean": "mean"}, floor=None),
    Picture("Pairs ranked right (share)", {"pair_accuracy": "in training"}),
    Picture("Margin of pairs", {"pair_margin": "better less worse"}, floor=None),
    Picture("Rewards of the loss (β·nats)", {"rewards/chosen": "better", "rewards/rejected": "worse"}, floor=None),
    Picture(
        "Moved from the reference (nats per token)",
        {"chosen_drift": "better", "rejected_drift": "worse"},
        floor=None,
    ),
    Picture("Length of completions (tokens)", {"length_mean": "mean", "length_max": "longest"}),
    Picture("Entropy (nats per token)", {"entropy": "entropy"}),
    Picture(
        "Zero-variance groups (share)",
        {"groups_all_right": "all right", "groups_all_wrong": "all wrong"},
        about="groups_zero_variance",
    ),
    Picture(
        "Clipped tokens (share)",
        {"clip_fraction_high": "above", "clip_fraction_low": "below", "capped_fraction": "capped"},
        about="clip_fraction",
    ),
    Picture(
        "KL (nats per token)", {"kl_old": "from start of update", "kl_ref": "to reference", "kl_behavior": "to sampler"}
    ),
    Picture("Gradient norm", {"grad_norm": "before clipping"}),
    Picture("Truncated completions (share)", {"truncated_fraction": "truncated"}),
    Picture("Log-prob gap, sampler to trainer (nats)", {"logp_gap_mean": "mean", "logp_gap_max": "largest"}),
    Picture("Staleness (steps)", {"staleness_mean": "mean", "staleness_max": "oldest token"}),
    Picture(
        "Tokens by age (share)", {f"staleness/{age}": f"{age} old" for age in range(SHOWN_AGES)}, about="staleness/*"
    ),
    Picture(
        "Waiting (seconds per step)",
        {"seconds_wait": "trainer", "seconds_sampler_idle": "sampler"},
        about="seconds_wait",
    ),
    Picture("Learning rate", {"lr": "lr"}),
    Picture("Speed (tokens per second)", {"tokens_per_second": "tokens/s"}),
    Picture("Warm-up: loss (nats per token)", {"loss": "cross-entropy"}, phase="warmup"),
)
OWN_PLACE = {"step", "phase", "seconds", "pass@1", "tokens", "clip_fraction", "groups_zero_variance"}
"""Metrics of training records without their own chart among the further metrics."""


def leading(run: RunData) -> str:
    """Draw the main chart: shares of correct completions, or rewards if these are graded.

    It is drawn twice, for wide and for narrow screens; the style sheet shows one of them.
    """
    draw = held_out_rewards if run.mean_first else success
    return at_each_width(lambda size: draw(run, size))


def success(run: RunData, size: tuple[int, int] = NARROW) -> str:
    """Draw pass@1 in training and on held-out prompts."""
    evals = run.of_phase("eval")
    series = [] if run.pieces else [_series(run, "pass@1", "training")]  # a piece is neither right nor wrong
    series += [_points(evals, "eval/greedy", "greedy, held out")]
    series += [_points(evals, "eval/pair_accuracy", "pairs ranked right, held out")]
    ks = sorted({int(name[10:]) for r in evals for name in r if name[:10] == "eval/pass@" and name[10:].isdigit()})
    series += [_points(evals, f"eval/pass@{k}", f"pass@{k}, held out") for k in ks]
    title = "Completions with a reward of 1 or more" if run.graded else "Correct completions"
    trained = "" if run.pieces else "sampled in training, and "
    words = f"Their share: {trained}on held-out prompts with 95 % intervals."
    if any("eval/pair_accuracy" in record for record in evals):
        title, words = "Pairs ranked right", "Their share of held-out pairs, with 95 % intervals."
    return chart(run.worded(title), words, [s for s in series if s.y], 0.0, size)


def held_out_rewards(run: RunData, size: tuple[int, int] = NARROW) -> str:
    """Draw the mean reward of held-out completions and its components, with intervals; return "" without
    evaluations."""
    evals = run.of_phase("eval")
    parts = reward_parts(evals)
    train = run.of_phase("train")
    whole = "reward/return" if any("reward/return" in record for record in train) else "reward_mean"
    series = [_series(run, whole, "training")] if run.mean_first else []
    series += [_points(evals, "eval/reward", "mean, held out")]
    series += [_points(evals, name, name.removeprefix("eval/reward/")) for name in parts]
    words = "Mean reward of held-out completions and of its components, with 95 % intervals over prompts."
    drawn = [s for s in series if s.y][:COLOURS] if evals else []
    return chart("Held-out reward", run.worded(words), drawn, None, size) if drawn else ""


def reaches_one(run: RunData, evals: Sequence[JsonMapping]) -> bool:
    """Return whether the share of rewards of 1 or more says anything: always, unless rewards are graded, as costs are,
    and none has been that large.
    """
    if not run.graded:
        return True
    shares = {name for r in evals for name in r if name.startswith(("eval/greedy", "eval/pass@"))}
    found = [r.get(name) for r in evals for name in shares if not name.endswith(SUFFIXES)]
    return any(is_number(x) and x > 0 for x in [*found, *run.columns("train").get("pass@1", Column()).y])


def counted_label(name: str) -> str:
    """Return the words for a component that is counted and not paid, with the unit that its name ends in."""
    words = name.removeprefix(f"{PART}{COUNTED}")
    return f"{words.removesuffix('_percent').replace('_', ' ')} (%)" if words.endswith("_percent") else words


def reward_parts(evals: Sequence[JsonMapping]) -> list[str]:
    """Return the metrics of the reward's held-out components that are paid; none if the only one is the reward."""
    parts = [name for name in _stated(evals) if not name.startswith(f"{PART}{COUNTED}")]
    return [] if len(parts) == 1 and all(r.get(parts[0]) == r.get("eval/reward") for r in evals) else parts


def counted_parts(evals: Sequence[JsonMapping]) -> list[str]:
    """Return the metrics of held-out components that are counted and not paid, such as a gap in percent."""
    return [name for name in _stated(evals) if name.startswith(f"{PART}{COUNTED}")]


def _stated(evals: Sequence[JsonMapping]) -> list[str]:
    names = dict.fromkeys(name for r in evals for name in r if name.startswith(PART))
    return [name for name in names if not name.endswith(SUFFIXES)]


def counts(run: RunData) -> list[str]:
    """Draw each component that is counted and not paid, which has a unit of its own, in training and held out."""
    train, evals = run.of_phase("train"), run.of_phase("eval")
    named = dict.fromkeys(chain.from_iterable(train))
    trained = [f"eval/{name}" for name in named if name.startswith(f"reward/{COUNTED}")]
    drawn = []
    for name in dict.fromkeys([*trained, *counted_parts(evals)]):
        own = [_series(run, name.removeprefix("eval/"), "training"), _points(evals, name, "held out")]
        title = f"{counted_label(name)}, counted, not paid"
        words = "Mean over completions, training's and held-out ones, the latter with 95 % intervals over prompts."
        drawn += [chart(title, run.worded(words), [s for s in own if s.y], None)] * any(s.y for s in own)
    return drawn


def yardsticks(run: RunData) -> str:
    """Draw the yardsticks of `eval.metrics` with intervals; return "" without any."""
    evals = run.of_phase("eval")
    series = [_points(evals, name, name.removeprefix(YARDSTICK)) for name in yardstick_names(evals)[:COLOURS]]
    words = "Means of held-out completions by the functions of eval.metrics, with 95 % intervals over prompts."
    return chart("Yardsticks besides the reward", run.worded(words), series, None) if series else ""


def yardstick_names(evals: Sequence[JsonMapping]) -> list[str]:
    """Return the metrics of the yardsticks of `eval.metrics`."""
    names = dict.fromkeys(name for r in evals for name in r if name.startswith(YARDSTICK))
    ends = {f"{name}{ending}" for name in names for ending in SUFFIXES}
    return [name for name in names if name not in ends]


def components(run: RunData) -> str:
    """Return the chart of the reward's components in training; "" if it has none."""
    names = component_names(run)
    series = [s for name in names if (s := _series(run, name, name.removeprefix("reward/"))).y]
    words = "Mean of each component of the reward over the completions of a step, before weights are added up."
    return chart("Components of the reward", run.worded(words), series, None) if series else ""


def component_names(run: RunData) -> list[str]:
    """Return the metrics of what is paid, up to the number of colours; further ones have their own charts."""
    paid = [name for name in run.columns("train") if name.startswith("reward/")]
    return [name for name in paid if not name.startswith(f"reward/{COUNTED}")][:COLOURS]


def pictures(run: RunData) -> list[str]:
    """Draw the standard small charts."""
    return [drawn for picture in PICTURES if (drawn := _draw(run, _without_marks(picture) if run.graded else picture))]


def _without_marks(picture: Picture) -> Picture:
    """Return the chart for graded rewards: a group may have equal rewards, but is never all right or all wrong."""
    dead = picture.about == "groups_zero_variance"
    return replace(picture, metrics={"groups_zero_variance": "all rewards equal"}) if dead else picture


def further(run: RunData) -> list[str]:
    """Draw every other metric of the training records, one chart each."""
    shown = {name for picture in PICTURES for name in picture.metrics} | OWN_PLACE | set(component_names(run))
    names = [n for n in run.columns("train") if n not in shown and not n.startswith(f"reward/{COUNTED}")]
    charts = (_draw(run, Picture(name, {name: name}, floor=None)) for name in names)
    return [drawn for drawn in charts if drawn]


def _draw(run: RunData, picture: Picture) -> str:
    labels = {name: run.worded(label) for name, label in picture.metrics.items()}
    series = [s for name, label in labels.items() if (s := _series(run, name, label, picture.phase)).y]
    if not series:
        return ""
    shown = [name for name, label in labels.items() if label in {s.name for s in series}]
    return chart(run.of_rows(picture.title), run.of_rows(_words(picture, shown)), series, picture.floor)


def _words(picture: Picture, shown: Sequence[str]) -> str:
    """Return the explanation of a chart from the glossary: by default that of its first metric."""
    name = picture.about or shown[0]
    try:
        metric = lookup(name)
    except InputError:
        return f"{name}: not in the glossary of this version."
    return f"{metric.words[0].upper()}{metric.words[1:]}. Look for: {metric.good}."


def _series(run: RunData, name: str, label: str, phase: str = "train") -> Series:
    column = run.columns(phase).get(name, Column())
    return Series(label, column.x, column.y)


def _points(records: Sequence[JsonMapping], name: str, label: str) -> Series:
    found = [r for r in records if is_number(r.get(name))]
    x, y = [float(r.get("step", i)) for i, r in enumerate(found)], [r[name] for r in found]
    whole = bool(found) and all(is_number(r.get(f"{name}_{end}")) for r in found for end in ("low", "high"))
    low, high = ([r[f"{name}_{end}"] for r in found] if whole else () for end in ("low", "high"))
    return Series(label, x, y, points=True, low=low, high=high)
