"""Runs of the recipes, recorded in docs/recipes.md: rewards at the beginning and at the end, correct completions.

A run that is recorded is not repeated while the recipe stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
import yaml

from finished import finished
from grouprl.config.run import load_config, recipe_names
from grouprl.evaluation.gain import recorded_gain
from grouprl.storage.run_folder import write_json, write_text
from held_out import figures, rose

Record = dict[str, Any]
DOCS = Path(__file__).parents[1] / "docs"
RECIPES = Path(__file__).parents[1] / "src" / "grouprl" / "recipes"
BEGIN, END = "<!-- recorded -->", "<!-- /recorded -->"
RIGHT = ("pass@1", "pair_accuracy")
FIRST, LAST = 3, 5
"""Rollouts that the reward is averaged over."""


def version(name: str) -> str:
    """Return a hash of what a recipe says; how it is explained is left out."""
    said = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def run(name: str, seed: int, folder: Path) -> Record:
    """Train a recipe on one thread and return what came of it; seconds are of processor time."""
    begun = time.process_time()
    config = load_config(name, [f"seed={seed}", "run.threads=1", "eval.every=0"])
    finished(config, folder)
    return read(name, seed, folder, time.process_time() - begun)


def read(name: str, seed: int, folder: Path, seconds: float) -> Record:
    """Return the record of a finished run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    paid = [line["reward_mean"] for line in lines if line["phase"] == "train" and "reward_mean" in line]
    held_out = [line for line in lines if line["phase"] == "eval"]
    return {
        "recipe": name,
        "seed": seed,
        "version": version(name),
        "reward": [fmean(paid[:FIRST]), fmean(paid[-LAST:])] if paid else None,
        "before": _evaluated(held_out[0]),
        "after": _evaluated(held_out[-1]),
        "seconds": round(seconds),
    }


def _evaluated(line: Record) -> Record:
    return figures(line, ("greedy", *RIGHT, "reward"))


def summary(records: list[Record]) -> str:
    """Say which recipes gained in every recorded seed, in some, in none, and which are not recorded."""
    seeds = {name: [gain(each) != "**no**" for each in records if each["recipe"] == name] for name in recipe_names()}
    sure = [name for name, found in seeds.items() if found and all(found)]
    groups = {
        "Not shown to learn": [name for name, found in seeds.items() if found and not any(found)],
        "Shown in some seeds only": [name for name, found in seeds.items() if any(found) and not all(found)],
        "Without a record": [name for name, found in seeds.items() if not found],
    }
    said = [f"**{title}**: {', '.join(f'`{name}`' for name in names) or 'none'}." for title, names in groups.items()]
    return " ".join([f"{len(sure)} of {len(seeds)} recipes gained significantly in every recorded seed.", *said]) + "\n"


def table(records: list[Record]) -> str:
    """Return a row per run, recipes by name."""
    columns = (
        "recipe",
        "seed",
        "gained",
        "reward",
        "right before",
        "right after",
        "held-out reward",
        "greedy",
        "seconds",
    )
    head = f"| {' | '.join(columns)} |\n" + "| --- " * len(columns) + "|\n"
    return head + "".join(map(_row, sorted(records, key=lambda each: (each["recipe"], each["seed"]))))


def _row(record: Record) -> str:
    before, after, right = record["before"], record["after"], _right(record)
    paid = "" if record["reward"] is None else "{:.2f} → {:.2f}".format(*record["reward"])
    greedy = f"{before['greedy']:.3f} → {after['greedy']:.3f}" if "greedy" in before else ""
    cells = [f"`{record['recipe']}`", record["seed"], gain(record), paid]
    cells += [_interval(before, right), _interval(after, right), _paid(record), greedy, record["seconds"]]
    return f"| {' | '.join(map(str, cells))} |\n"


def gain(record: Record) -> str:
    """Say what rose for sure: completions that are right, the reward alone, or nothing."""
    right = _right(record)
    if rose(record, right) or not rose(record, "reward"):
        return "right" if rose(record, right) else "**no**"
    change = recorded_gain(record["before"], record["after"], right)
    return "reward; right fell" if change is not None and change.high < 0 else "reward"


def _right(record: Record) -> str:
    """Return the measure of what is right: of completions, or of pairs where nothing is sampled."""
    return next(measure for measure in RIGHT if measure in record["before"])


def _interval(found: Record, kind: str) -> str:
    return f"{found[kind]:.3f} [{found[f'{kind}_low']:.3f}, {found[f'{kind}_high']:.3f}]"


def _paid(record: Record) -> str:
    """Return the held-out reward where it is recorded and not the share that is right."""
    sides = [record[side] for side in ("before", "after")]
    right = _right(record)
    if any("reward" not in side for side in sides) or all(side["reward"] == side[right] for side in sides):
        return ""
    return " → ".join(_interval(side, "reward") for side in sides)


def publish(records: list[Record]) -> None:
    """Write the numbers, and the table between its marks."""
    write_json(DOCS / "recipes.json", records)
    before, _, rest = (DOCS / "recipes.md").read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    write_text(DOCS / "recipes.md", f"{before}{BEGIN}\n{summary(records)}\n{table(records)}{END}{after}")


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Recipes; all if none is named.")] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 3,
    again: Annotated[bool, typer.Option("--again", help="Run also what is recorded as it is.")] = False,
    minutes: Annotated[float, typer.Option(help="Begin no run after so many minutes.")] = math.inf,
) -> None:
    """Run what is not recorded yet, seed after seed, and write docs/recipes.json and the table of docs/recipes.md."""
    store, begun = DOCS / "recipes.json", time.monotonic()
    records: list[Record] = json.loads(store.read_text(encoding="utf-8")) if store.exists() else []
    records = [each for each in records if each["recipe"] in recipe_names()]
    for seed, name in ((seed, name) for seed in range(seeds) for name in names or recipe_names()):
        known = {(each["recipe"], each["seed"]): each["version"] for each in records}
        if (not again and known.get((name, seed)) == version(name)) or time.monotonic() - begun > 60 * minutes:
            continue
        with tempfile.TemporaryDirectory() as folder:
            record = run(name, seed, Path(folder) / "run")
        records = [each for each in records if (each["recipe"], each["seed"]) != (name, seed)] + [record]
        typer.echo(_row(record), nl=False)
        publish(records)


if __name__ == "__main__":
    typer.run(main)
