"""The result of a comparison: for each arm what it reached and spent, for each pair by how much they differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.experiments.aggregates import (
    Floats,
    Interval,
    curve_band,
    improvement_interval,
    interquartile_mean,
    iqm_difference,
    iqm_interval,
    performance_profile,
    profile_band,
)
from grouprl.experiments.budget import WORDS
from grouprl.experiments.design import Comparison
from grouprl.experiments.run_outcome import RunOutcome, area
from grouprl.experiments.significance import holm, paired_p_value, without_spread
from grouprl.experiments.terms import of_other_size
from grouprl.experiments.tuning import Tuned
from grouprl.monitor.outcome import TRUE

POINTS = 61
"""Places of the budget at which curves are read."""
LEVELS = 41
"""Levels of a performance profile."""
LEVEL = 0.05
"""Adjusted p-values below it are called a difference."""
OVERSPENT = 1.1
"""Share of its budget beyond which a run is said to have had more than the others."""
SCORES = ("final", "area")
GOLD = TRUE[0]
"""The measure of a reward beside one that only compares completions of a group."""


@dataclass(frozen=True)
class ArmResult:
    """The scores and costs of one arm over its runs."""

    arm: str
    final: Interval
    """Interquartile mean of the final measure over seeds and tasks."""
    area: Interval
    """The same of the mean height of the curve over the budget."""
    costs: Mapping[str, float]
    health: Mapping[str, float]
    tuned: Mapping[str, str]
    """By source: the chosen values."""


@dataclass(frozen=True)
class Difference:
    """By how much an arm differs from the one that all are compared with."""

    arm: str
    against: str
    score: str
    """`final` or `area`."""
    mean: float
    """Mean over tasks and paired seeds."""
    iqm: Interval
    """Difference of the interquartile means."""
    improvement: Interval
    """The chance that a run of this arm is better than one of the other."""
    p: float
    p_holm: float
    lower_is_better: bool = False

    @property
    def verdict(self) -> str:
        """The difference in a word: better, worse, or not shown."""
        return "not shown" if self.p_holm >= LEVEL else "better" if (self.mean > 0) != self.lower_is_better else "worse"


@dataclass(frozen=True)
class BandedCurve:
    """The curve of one arm on one source with its band, at even places of the budget."""

    source: str
    arm: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class RunScore:
    """The scores and costs of one run."""

    source: str
    arm: str
    seed: int
    final: float
    area: float
    costs: Mapping[str, float]
    folder: str


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """Everything that a comparison found."""

    measure: str
    unit: str
    amounts: Mapping[str, float]
    """By source: the budget of a run."""
    seeds: int
    against: str
    arms: tuple[ArmResult, ...]
    differences: tuple[Difference, ...]
    curves: tuple[BandedCurve, ...]
    profiles: tuple[BandedCurve, ...]
    """Share of runs whose final score is better than each level; the source is that of the arm's runs, all together."""
    tuned: tuple[Tuned, ...]
    runs: tuple[RunScore, ...]
    notes: tuple[str, ...]
    lower_is_better: bool = False

    def __repr__(self) -> str:
        """Return the verdict, and below it what weakens it."""
        return "\n".join([self.verdict(), *(f"note: {each}" for each in self.notes)])

    def as_json(self) -> JsonObject:
        """Return the result as JSON, with the verdict of each difference."""
        words = [{**asdict(each), "verdict": each.verdict} for each in self.differences]
        return {**asdict(self), "differences": words}

    @property
    def direction(self) -> str:
        """Words after the measure where less of it is better."""
        return ", less is better" if self.lower_is_better else ""

    def verdict(self) -> str:
        """Return the result in one sentence."""
        found = [each for each in self.differences if each.score == "final"]
        named = {word: [each.arm for each in found if each.verdict == word] for word in ("better", "worse")}
        said = [f"{' and '.join(arms)} {word} than {self.against}" for word, arms in named.items() if arms]
        rest = [each.arm for each in found if each.verdict == "not shown"]
        left = [f"no difference of {', '.join(rest)} from {self.against} is shown"] if rest else []
        return "; ".join([*said, *left]) + f" ({self.measure} at the end{self.direction}, {self.seeds} seeds)."


Outcomes = Mapping[tuple[str, str], Sequence[RunOutcome]]
"""By source and arm: the outcomes of the seeds, in their order."""


def measure_of(outcomes: Sequence[RunOutcome], asked: str | None) -> str:
    """Return the measure that is compared: the one asked for, else that of reward models, the mean of graded
    rewards and of returns, or pass@1.

    Where a reward only compares completions of a group, its mean is a constant: the reward beside it counts.

    Raises:
        InputError: the runs do not have the measure asked for, or none that tells them apart.
    """
    if asked is not None:
        for each in outcomes:
            each.curve(asked, 1.0, 2)
        return asked
    kinds = ("eval/graded", "eval/returns")
    means = any(max(each.measures.get(kind, (0.0,))) > 0 for each in outcomes for kind in kinds)
    compared = any("eval/compared" in each.measures for each in outcomes)
    shares = ("eval/pair_accuracy", *(() if means else ("eval/pass@1",)))
    names = (GOLD, *shares) if compared else (*shares, "eval/reward")
    found = next((name for name in names if all(name in each.measures for each in outcomes)), None)
    if found is None:
        raise InputError(
            "the reward only compares completions of a group",
            "its mean is one half for every policy, and tells no two of them apart",
            "Set reward.gold beside the judge, or name a yardstick of eval.metrics with --measure eval/metric/NAME",
        )
    return found


def scores(
    design: Comparison, found: Outcomes, measure: str, amounts: Mapping[str, float]
) -> dict[str, dict[str, Floats]]:
    """Return by score and arm the array [N seeds, M sources]."""
    read = {
        "final": lambda each, source: each.final(measure),
        "area": lambda each, source: area(each.curve(measure, amounts[source], POINTS)),
    }
    names = [source.name for source in design.sources]
    return {
        score: {
            arm.label: np.array([[of(each, name) for each in found[name, arm.label]] for name in names]).T
            for arm in design.arms
        }
        for score, of in read.items()
    }


def result_of(
    design: Comparison,
    found: Outcomes,
    folders: Mapping[tuple[str, str], Sequence[str]],
    measure: str,
    amounts: Mapping[str, float],
    tuned: Sequence[Tuned],
) -> ComparisonResult:
    """Return the result of a comparison from the outcomes of its runs."""
    table = scores(design, found, measure, amounts)
    chosen = {(each.source, each.arm): " ".join(each.chosen) for each in tuned}
    return ComparisonResult(
        measure,
        WORDS[design.budget.unit],
        amounts,
        design.seeds,
        design.reference.label,
        tuple(_arm(arm.label, design, found, table, chosen) for arm in design.arms),
        _differences(design, table),
        tuple(_curves(design, found, measure, amounts)),
        tuple(_profiles(table["final"], design.sign)),
        tuple(tuned),
        tuple(_runs(design, found, folders, table)),
        (*_notes(design, found, tuned, amounts), *_alarms(found), *_level_notes(design, table)),
        design.lower_is_better,
    )


def _arm(
    label: str,
    design: Comparison,
    found: Outcomes,
    table: Mapping[str, Mapping[str, Floats]],
    chosen: Mapping[tuple[str, str], str],
) -> ArmResult:
    runs = [each for source in design.sources for each in found[source.name, label]]
    tuned = {source.name: chosen[source.name, label] for source in design.sources if (source.name, label) in chosen}
    final, height = (iqm_interval(table[score][label]) for score in SCORES)
    return ArmResult(label, final, height, _means([x.costs for x in runs]), _means([x.health for x in runs]), tuned)


def _means(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for record in records for name in record)
    return {name: float(np.mean([record[name] for record in records if name in record])) for name in names}


def _differences(design: Comparison, table: Mapping[str, Mapping[str, Floats]]) -> tuple[Difference, ...]:
    """Return every difference from the reference; their p-values are corrected for all of them."""
    base = design.reference.label
    pairs = [(score, arm.label) for score in SCORES for arm in design.arms if arm.label != base]
    values = [(table[score][base], table[score][arm]) for score, arm in pairs]
    p_values = [paired_p_value(b - a) for a, b in values]
    sign, lower = design.sign, design.lower_is_better
    chances = [improvement_interval(sign * a, sign * b) for a, b in values]
    return tuple(
        Difference(arm, base, score, float((b - a).mean()), iqm_difference(a, b), chance, p, adjusted, lower)
        for (score, arm), (a, b), chance, p, adjusted in zip(
            pairs, values, chances, p_values, holm(p_values), strict=True
        )
    )


def _curves(design: Comparison, found: Outcomes, measure: str, amounts: Mapping[str, float]) -> list[BandedCurve]:
    drawn = []
    for (source, arm), outcomes in found.items():
        x_p = np.linspace(0.0, amounts[source], POINTS)
        curve_np = np.stack([each.curve(measure, amounts[source], POINTS) for each in outcomes])
        drawn.append(_curve(source, arm, x_p, *curve_band(curve_np)))
    return drawn


def _profiles(final: Mapping[str, Floats], sign: int) -> list[BandedCurve]:
    """Return the share of runs above each level, or below it where less is better (sign -1)."""
    every = np.concatenate([score_nm.ravel() for score_nm in final.values()])
    low, high = min(0.0, every.min()), max(0.0, every.max())
    level_l = np.linspace(low, high if low < high else 1.0, LEVELS)
    read = ((arm, sign * score_nm, sign * level_l) for arm, score_nm in final.items())
    return [_curve("all", arm, level_l, performance_profile(s, at), *profile_band(s, at)) for arm, s, at in read]


def _curve(source: str, arm: str, *columns: Floats) -> BandedCurve:
    x, y, low, high = (tuple(float(f"{value:.6g}") for value in column) for column in columns)
    return BandedCurve(source, arm, x, y, low, high)


def _runs(
    design: Comparison,
    found: Outcomes,
    folders: Mapping[tuple[str, str], Sequence[str]],
    table: Mapping[str, Mapping[str, Floats]],
) -> list[RunScore]:
    made = []
    for column, source in enumerate(design.sources):
        for arm in design.arms:
            place = source.name, arm.label
            final, height = (table[score][arm.label][:, column].tolist() for score in SCORES)
            for seed, (run, at) in enumerate(zip(found[place], folders[place], strict=True)):
                made.append(RunScore(*place, seed, final[seed], height[seed], run.costs, at))
    return made


def _notes(design: Comparison, found: Outcomes, tuned: Sequence[Tuned], amounts: Mapping[str, float]) -> list[str]:
    """Say what a reader has to know before believing the table."""
    notes = [note for each in tuned for note in each.notes()]
    if not design.tunes:
        notes.append("No learning rate was tuned (--no-tune): an arm may be behind because the rate does not suit it.")
    if other := dict.fromkeys(label for source in design.sources for label in of_other_size(source, design.arms)):
        notes.append(f"Models are not all of one size ({', '.join(other)}): those do not start from the same weights.")
    unit = design.budget.unit
    for (source, arm), outcomes in found.items():
        short = [each for each in outcomes if unit != "steps" and each.costs[unit] < amounts[source]]
        if short:
            share = interquartile_mean(np.array([[each.costs[unit] / amounts[source]] for each in short]))
            notes.append(
                f"Of the runs of {arm} on {source}, {len(short)} made all their steps before the budget was spent "
                f"({share:.0%} of it); from there on, their curves are level. More steps (--steps) let them spend it."
            )
        most = max(each.costs[unit] for each in outcomes) / amounts[source] if unit != "steps" else 1.0
        if most > OVERSPENT:
            notes.append(
                f"A run of {arm} on {source} spent {most:.0%} of the budget, as it ends with the step that spends it: "
                "its final measure is that of more training than the others had. Give a larger budget."
            )
    return notes


def _alarms(found: Outcomes) -> Iterator[str]:
    """Say which alarms the health reports of compared runs raise, and what one of them says."""
    for code in dict.fromkeys(code for runs in found.values() for each in runs for code in each.alarms):
        having = {place: [each.alarms[code] for each in runs if code in each.alarms] for place, runs in found.items()}
        where = ", ".join(f"{len(said)} of {arm} on {source}" for (source, arm), said in having.items() if said)
        text = next(said[0] for said in having.values() if said)
        yield f"Alarm {code} in runs: {where}. One says: {text} (grouprl doctor on the folder `run` of such a run)"


def _level_notes(design: Comparison, table: Mapping[str, Mapping[str, Floats]]) -> Iterator[str]:
    """Say of differences that are the same on all seeds what can be concluded from them."""
    base, seeds = design.reference.label, len(next(iter(table["final"].values())))
    pairs = [(score, arm.label) for score in SCORES for arm in design.arms if arm.label != base]
    enough = math.floor(1 + math.log2(len(pairs) / 0.05)) + 1 if pairs else 0  # Holm's correction is at most for all
    for score, arm in pairs:
        difference_nm = table[score][arm] - table[score][base]
        if without_spread(difference_nm) and abs(difference_nm.mean()) > 1e-12:
            yield (
                f"The {score} difference of {arm} is the same on all {seeds} seeds: without spread there is no t-test, "
                f"and its p is that of {seeds} equal signs, 2^(1-{seeds}) = {2.0 ** (1 - seeds):.3g}, whatever its "
                f"size. From {enough} seeds on this shows it, corrected for {len(pairs)} rows."
            )
