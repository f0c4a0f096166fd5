"""A pilot: the rewards that a run has stored, and what its evaluations measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping
from grouprl.experiments.power import Floats, Spread, extrapolated, teaching
from grouprl.monitor.outcome import TRUE, mean_first
from grouprl.storage.run_folder import RunFolder
from grouprl.view.app.row_table import file_table
from grouprl.view.runfiles import read_run

GROUPS = 200
"""Number of groups of a pilot, if as many are stored."""
MEASURES = ("eval/pass@1", "eval/reward")


@dataclass(frozen=True)
class Pilot:
    """The first or last stored groups of a run."""

    steps: tuple[int, int]
    """First and last step."""
    rewards: tuple[Floats, ...]
    """The rewards of each group."""
    tokens: float
    """Mean tokens that the policy wrote of a completion, or of all rows of an episode."""

    @property
    def size(self) -> int:
        """Completions of the smallest group."""
        return min(map(len, self.rewards))

    def teaching(self, size: int) -> tuple[float, float, float] | None:
        """Return the share of groups of `size` that have unequal rewards, and its interval.

        Beyond the pilot's own size the share is extrapolated, without an interval (NaN); None if rewards are graded.
        """
        if size <= self.size:
            return tuple(teaching(self.rewards, size))  # type: ignore[return-value]
        share = extrapolated(self.rewards, size)
        return None if share is None else (share, float("nan"), float("nan"))


def pilot_of(folder: Path, *, last: bool = False) -> Pilot:
    """Return the first stored groups of a run, or the last; whole steps, until there are enough.

    Raises:
        InputError: it is not a run folder, or no group of two sampled completions with rewards is stored.
    """
    paths = sorted(RunFolder.open(folder).rollouts.glob("step-*.parquet"))
    found: list[Floats] = []
    steps, tokens, completions = [], 0, 0
    for path in reversed(paths) if last else paths:
        table = file_table(path)
        groups: dict[int, list[float]] = {}
        columns = (table[name].to_pylist() for name in ("group", "reward", "source"))
        for group, reward, source in zip(*columns, strict=True):
            if reward is not None and source in (None, "sampled"):
                groups.setdefault(group, []).append(reward)
        found += [np.array(each) for each in groups.values() if len(each) > 1]
        steps.append(int(path.stem.partition("-")[2]))
        wrote, begun = _written(path)
        tokens, completions = tokens + wrote, completions + begun
        if len(found) >= GROUPS:
            break
    if len(found) < 2:
        raise InputError(
            f"{folder} stores fewer than two groups with rewards",
            "a pilot is made of groups of at least two completions",
            "Store some: --set run.rollouts_every=1, with batch.group_size above 1",
        )
    return Pilot((min(steps), max(steps)), tuple(found), tokens / completions)


def _written(path: Path) -> tuple[int, int]:
    """Return how many tokens the policy wrote in the sampled rows of a step, and of how many completions or episodes.

    What an environment showed between them was not sampled; an episode of several rows begins with the row 0.
    """
    rows = [row for row in pq.read_table(path).to_pylist() if row.get("source") in (None, "sampled")]
    wrote = (len(row["completion_ids"]) if row.get("mask") is None else sum(row["mask"]) for row in rows)
    return sum(wrote), sum(not row.get("row") for row in rows)


@dataclass(frozen=True)
class Held:
    """A prediction of a pilot held against what the run recorded."""

    what: str
    predicted: float
    seen: float


def held_against(folder: Path, pilot: Pilot) -> list[Held]:
    """Return what `pilot`, the last groups of a run, predicts of that run, beside what was seen.

    The groups that teach are predicted by the first half of each group's completions; the interval of the last
    evaluation by the spread of training rewards, with as many completions of each held-out prompt as it sampled.
    """
    half = pilot.size // 2
    found = []
    firsts = [group[:half] for group in pilot.rewards]
    if half > 1 and (share := extrapolated(firsts, pilot.size)) is not None:
        what = f"groups of {pilot.size} that teach, by groups of {half}"
        found.append(Held(what, share, teaching(pilot.rewards, pilot.size).value))
    record = next(reversed(read_run(folder, rollouts=False).of_phase("eval")), {})
    measure = _measure(record, pilot.rewards)
    if measure and record.get("eval/prompts"):
        width = (record[f"{measure}_high"] - record[f"{measure}_low"]) / 2
        sampled = max(1, int(record.get("eval/samples") or 1))  # without samples it has one greedy completion
        predicted = Spread.of(pilot.rewards).half_width(int(record["eval/prompts"]), sampled)
        found.append(Held(f"± of {measure} on {record['eval/prompts']:.0f} prompts", predicted, width))
    return found


def finals(folders: Sequence[Path]) -> tuple[str, list[float]]:
    """Return a measure that the last evaluations of all runs have, and its values; ("", []) if there is none."""
    records = [next(reversed(read_run(folder, rollouts=False).of_phase("eval")), {}) for folder in folders]
    means = any(map(mean_first, records))
    names: tuple[str, ...] = MEASURES[::-1] if means else MEASURES
    if any(record.get("eval/compared") for record in records):  # the mean of such a reward has no spread to learn from
        names = (TRUE[0], *(name for name in names if name == "eval/pass@1" and not means))
    for name in names:
        if all(name in record for record in records):
            return name, [float(record[name]) for record in records]
    return "", []


def _measure(record: JsonMapping, rewards: Sequence[Floats]) -> str:
    binary = all(np.isin(group, (0.0, 1.0)).all() for group in rewards)
    name = MEASURES[0] if binary else MEASURES[1]
    return name if {name, f"{name}_low", f"{name}_high"} <= record.keys() else ""
