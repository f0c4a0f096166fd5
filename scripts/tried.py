"""What the records of single pages show of methods: preferences, games, control, teams, solvers.

Where a record has an interval for each run, runs are counted by it. Elsewhere the seeds are judged together: all gained
if the 95 % interval of their mean gain (Student) lies above zero.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effects_report import interval
from grouprl.methods import CATALOGUE
from held_out import rose

DOCS = Path(__file__).parents[1] / "docs"
Rows = Sequence[Mapping[str, Any]]
FOILS = {
    *(("circle", "bradley_terry"), ("cycles", "bradley_terry")),
    *(("games", "dpo, stored pairs"), ("games", "ipo, stored pairs")),
    *(("stitched", "sft"), ("stitched", "weighted_bc"), ("preferred", "sft"), ("cases", "reinforce")),
}
"""Where a method stands because it has to fail there: no reward orders a circle, stored pairs cannot follow a game, and
cloning takes the halves as they are. That says nothing against it."""
MAIN = {"bradley_terry": "pair_accuracy"}
"""What a pretrained model's runs are judged by, where it is not pass@1."""


@dataclass(frozen=True)
class Tried:
    """Runs of a method in one place: how many gained, of how many, and what the others came to."""

    method: str
    place: str
    gained: int
    runs: int
    found: str
    """What came of it, in a few words."""

    def words(self) -> str:
        """Say it with its place."""
        return f"{self.place} ({self.found})"


def read(name: str) -> Any:
    """Return a record of the docs."""
    return json.loads((DOCS / name).read_text(encoding="utf-8"))


def seeds_of(number: int) -> str:
    """Return a number of seeds in words."""
    return "1 seed" if number == 1 else f"{number} seeds"


def together(method: str, place: str, before: Sequence[float], after: Sequence[float], sign: int = 1) -> Tried:
    """Return what came of runs whose seeds are judged together; `sign` is -1 where less is better."""
    low, _, _ = interval([sign * (b - a) for a, b in zip(before, after, strict=True)])
    moved = f"{seeds_of(len(after))} together {statistics.fmean(before):.3g} → {statistics.fmean(after):.3g}"
    return Tried(method, place, len(after) * (low > 0), len(after), moved + ("" if low > 0 else ", not shown"))


def known(label: str, place: str = "") -> str:
    """Return the method of a label, "mah_dpo" of "mah_dpo, a model each"; "" of an arm that is none, or a foil."""
    name = label.partition(",")[0].strip()
    return name if name in CATALOGUE and (place, label) not in FOILS else ""


def preferences() -> Iterator[Tried]:
    """Yield what docs/preferences.json has: methods of pairs, lists and comparisons, and reward models."""
    for row in read("preferences.json"):
        name, study = known(row["arm"], row["study"]), row["study"]
        if name:
            gained, runs = sum(low > 0 for low in row["gain_low"]), len(row["final"])
            measure = row["measure"].removeprefix("eval/").replace("_", " ")
            found = (
                f"{gained} of {seeds_of(runs)}, {measure} {row['before']:.3f} → {statistics.fmean(row['final']):.3f}"
            )
            place = f"{study}: {row['arm']}" if row["arm"] != name else study
            yield Tried(name, f"preferences, {place}", gained, runs, found)


def pretrained() -> Iterator[Tried]:
    """Yield what docs/real_preferences.json has of pairs: a pretrained model of 135 million parameters."""
    runs: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in read("real_preferences.json"):
        if not row["tuning"] and "gold" not in "".join(row["after"]):
            runs[row["arm"]].append(row)
    for name, rows in runs.items():
        gained = sum(rose(row, MAIN.get(name, "pass@1")) for row in rows)
        yield Tried(name, "a pretrained model", gained, len(rows), f"{gained} of {seeds_of(len(rows))}")


def games() -> Iterator[Tried]:
    """Yield what docs/games.json has: the exploitability of policies in a game without a best action."""
    for label, arm in read("games.json")["methods"].items():
        if name := known(label, "games"):
            began = [arm["curve"][0]] * len(arm["last"])
            yield together(name, "the gap of a cyclic game" + label.removeprefix(name), began, arm["last"], -1)


def of_pages() -> Iterator[Tried]:
    """Yield what records of before and after have: teams, orders, flows, solvers."""
    for file, place, sign in (("strategies.json", "meeting places", 1), ("latent_spaces.json", "crossing", 1)):
        yield from _before_and_after(read(file), place, "before", "after", sign)
    saboteurs = [{**row, "after": row["right"][0]} for row in read("saboteurs.json")]
    yield from _before_and_after(saboteurs, "a jury with saboteurs, right verdicts", "before", "after", -1)
    flows = [{"arm": row["method"], "before": row["l1"][0], "after": row["l1"][1]} for row in read("flows.json")]
    yield from _before_and_after(flows, "hypergrid, distance from the target", "before", "after", -1)
    yield from _before_and_after(read("grids.json"), "a grid of colours", "began", "earned", 1)
    yield from _before_and_after(read("hauling.json"), "hauling", "began", "earned", 1)
    tours = [{**row, "arm": row["method"]} for row in read("populations.json")]
    yield from _before_and_after(tours, "tours, gap in percent", "began", "one", -1)
    orders = read("orders.json")
    (chance,) = (row["earned"] for row in orders if row["arm"] == "random")
    yield from _before_and_after([{**row, "began": chance} for row in orders], "sub-tasks", "began", "earned", 1)


def _before_and_after(rows: Rows, place: str, before: str, after: str, sign: int) -> Iterator[Tried]:
    for label, runs in _by_arm(rows):
        if name := known(label):
            suffix = label.removeprefix(name)
            yield together(name, place + suffix, [row[before] for row in runs], [row[after] for row in runs], sign)


def _by_arm(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[str(row["arm"])].append(row)
    yield from found.items()


def control() -> Iterator[Tried]:
    """Yield what docs/control.json has: worlds of vectors."""
    for row in read("control.json"):
        if name := known(row["method"], row["arena"]):
            yield together(name, f"control, {row['arena']}", row["began"], row["paid"])


def further() -> Iterator[Tried]:
    """Yield what the records of single pages have of the methods of the catalogue."""
    for found in (preferences(), pretrained(), games(), of_pages(), control()):
        yield from found
