"""Preference methods, a reward model, and GRPO against it on a pretrained model: docs/preferences.md, last tables.

Each method has a rate of its own, the best of three by a shorter run of another seed. `run` makes the runs side by
side, the longest chain first; it may be cut off at any time, and a finished run is not repeated while its recipe stays
as it is. `report` puts the file of results into the record, in place of what was there: a table is of one device.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Annotated, Literal

import typer

import real
from grouprl.config.run import load_config
from grouprl.core.errors import RunError
from grouprl.storage.run_folder import RunFolder, write_json
from held_out import figures
from page_record import fill
from pooled_runs import RunQueue, leave_numbers
from real_claims import device
from real_preferences_report import AGAINST, MODEL, RIVAL, Record, good, tables

RECORD, PAGE = real.DOCS / "real_preferences.json", real.DOCS / "preferences.md"
RESULTS = "real_preferences.json"
MEASURES = ("greedy", "pass@1", "reward", "reward/gold", "pair_accuracy")
METHODS: dict[str, tuple[str, tuple[float, ...]]] = {
    RIVAL: ("preferred", (5e-6, 2e-5, 6e-5)),
    "orpo": ("preferred", (1e-5, 4e-5, 1.2e-4)),
    "kto": ("preferred_labels", (5e-6, 2e-5, 6e-5)),
    MODEL: ("preferred_scores", (5e-6, 2e-5, 6e-5)),
    AGAINST: ("preferred_scored", (3e-6, 1e-5, 3e-5)),
}
"""The recipe of each method, and the rates that are tried. The last is paid by the reward model of the same seed."""
TUNED_ON, SHORTER = 7, ("steps=6", "eval.final_prompts=48")
"""The seed on which rates are tried, and what is set then."""

Purpose = Literal["tuned", "compared", "used"]
"""Whether a run chooses a rate, is compared, or is needed by others alone: this is not recorded."""
Call = tuple[str, int, Sequence[str], Purpose]
"""A method, a seed, changes and a purpose."""


@dataclass
class Runs:
    """The runs of one call: what they have in common, where they are, and what they have shown so far."""

    queue: RunQueue
    given: tuple[str, ...]
    """Changes `key=value` of all of them: the model and the device among them."""
    folder: Path
    results: Path
    shown: list[Record] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def run(self, arm: str, seed: int, changes: Sequence[str], purpose: Purpose) -> Record:
        """Train, or read what is kept of the same run, and write the file of results."""
        recipe = METHODS[arm][0]
        known = {"arm": arm, "seed": seed, "changes": list(changes), "version": version(recipe)}
        known["tuning"] = purpose == "tuned"
        folder, rank = self.of(known), 0 if arm in (MODEL, AGAINST) else list(METHODS).index(arm) + 1
        given = [f"seed={seed}", f"method={arm}", *self.given, *changes]
        found: Record = self.queue.submit(rank, folder.name, make, known, recipe, given, folder).result()
        with self.lock:
            self.shown += [found] if purpose != "used" else []
            write_json(self.results, self.shown)
        return found

    def of(self, known: Record) -> Path:
        """Return the folder of a run."""
        what = json.dumps([known["version"], known["changes"], self.given])
        hashed = hashlib.sha256(what.encode()).hexdigest()[:12]
        return self.folder / f"{known['arm']}-s{known['seed']}-{hashed}"

    def tuned(self, arm: str, changes: Sequence[str] = ()) -> list[str]:
        """Return the changes with the rate at which a shorter run of another seed ends best."""
        tries = [[f"optim.lr={lr}", *changes] for lr in METHODS[arm][1]]
        found = self.side_by_side([(arm, TUNED_ON, [*each, *SHORTER], "tuned") for each in tries])
        best = max(range(len(tries)), key=lambda at: good(found[at]))
        return tries[best][:1]

    def side_by_side(self, calls: Sequence[Call]) -> list[Record]:
        """Return what several runs have shown."""
        with ThreadPoolExecutor(len(calls)) as threads:
            return list(threads.map(lambda call: self.run(*call), calls))

    def compare(self, arm: str, seeds: int) -> None:
        """Tune a method, and run it on every seed."""
        best = self.tuned(arm)
        self.side_by_side([(arm, seed, best, "compared") for seed in range(seeds)])

    def compare_paid(self, seeds: int) -> None:
        """Tune and train reward models, then the policy that each of them pays; one pays where its rate is tuned."""
        best = self.tuned(MODEL)
        calls: list[Call] = [(MODEL, seed, best, "compared") for seed in range(seeds)]
        models = self.side_by_side([*calls, (MODEL, TUNED_ON, best, "used")])
        paid = {each["seed"]: f"reward.model={self.of(each) / 'model'}" for each in models}
        rate = self.tuned(AGAINST, [paid[TUNED_ON]])
        self.side_by_side([(AGAINST, seed, [*rate, paid[seed]], "compared") for seed in range(seeds)])


def make(known: Record, recipe: str, given: Sequence[str], folder: Path) -> Record:
    """Train, or return what is kept of the same run; a process of the queue calls it."""
    row = folder / "row.json"
    if row.is_file():
        kept: Record = json.loads(row.read_text(encoding="utf-8"))
        return kept
    begun = time.perf_counter()
    try:
        real.trained(recipe, given, folder)
        seen = read(folder)
    except RunError as error:  # its loss is no number any more, for instance: the rate is too high
        seen = {"lr": load_config(str(folder / "config.yaml")).optim.lr, "error": str(error)}
    found = {**known, **seen, "seconds": round(time.perf_counter() - begun, 1)}
    write_json(row, found)
    leave_numbers(folder, ("checkpoints",) if known["arm"] == MODEL else ("checkpoints", "model"))
    print(
        f"{folder.name} at {found['lr']:g}: {seen.get('error', f'{good(found):.3f}')}, {found['seconds']} s", flush=True
    )
    return found


def version(recipe: str) -> str:
    """Return a hash of a recipe and of the data that it names."""
    text = (real.RECIPES / f"{recipe}.yaml").read_bytes()
    data = sorted(path for path in real.RECIPES.glob("sum_*.jsonl") if path.name.encode() in text)
    return hashlib.sha256(b"".join([text, *(path.read_bytes() for path in data)])).hexdigest()[:12]


def read(folder: Path) -> Record:
    """Return the numbers of a finished run."""
    lines, config = RunFolder(folder).read_metrics(), load_config(str(folder / "config.yaml"))
    held_out = [line for line in lines if line["phase"] == "eval"]
    steps = [line for line in lines if line["phase"] == "train"]
    return {
        "lr": config.optim.lr,
        "steps": len(steps),
        "device": device(config.model.device),
        "precision": config.model.precision,
        "before": figures(held_out[0], MEASURES, 4),
        "after": figures(held_out[-1], MEASURES, 4),
        "reward": [round(line["reward_mean"], 4) for line in steps if "reward_mean" in line],
        "gold": [round(line["reward/gold"], 4) for line in steps if "reward/gold" in line],
        "kl": [round(line["kl_ref"], 5) for line in steps if "kl_ref" in line],
        "findings": sorted({each["code"] for each in real.health(folder)}),
    }


def records() -> list[Record]:
    """Return what is recorded."""
    found: list[Record] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else []
    return found


app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def run(
    model: Annotated[str, typer.Option(help="The folder of the model; none: it is fetched.")] = "",
    runs: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = real.RUNS,
    out: Annotated[Path, typer.Option(help="Where the file of results is written.")] = real.RUNS,
    on: Annotated[str, typer.Option("--device", help="cpu, cuda …")] = "auto",
    precision: Annotated[str, typer.Option(help="Of products: float32 or mixed.")] = "float32",
    seeds: Annotated[int, typer.Option(help="Seeds per method.")] = 2,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.")] = 1,
    changes: Annotated[list[str] | None, typer.Option("--set", help="A setting of all runs, key=value.")] = None,
) -> None:
    """Run what is not kept yet, and write what runs have shown as it comes."""
    name = model or real.fetch(real.RUNS / "model")[0]
    given = (f"model.name={name}", f"model.device={on}", "model.dtype=float32", f"model.precision={precision}")
    out.mkdir(parents=True, exist_ok=True)
    with RunQueue(jobs) as queue, ThreadPoolExecutor(len(METHODS)) as threads:
        made = Runs(queue, (*given, "run.check_model=false", *(changes or ())), runs.absolute(), out / RESULTS)
        paid = threads.submit(made.compare_paid, seeds)
        others = [threads.submit(made.compare, arm, seeds) for arm in METHODS if arm not in (MODEL, AGAINST)]
        for each in (paid, *others):
            each.result()


@app.command()
def report(
    results: Annotated[
        Path | None, typer.Argument(help="The file of results; none: the record as it is.", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Write the record and the tables of the page."""
    found = json.loads((results or RECORD).read_text(encoding="utf-8"))
    found = [{name: value for name, value in each.items() if name != "changes"} for each in found]  # they name folders
    write_json(RECORD, found)
    fill(PAGE, tables(found))


if __name__ == "__main__":
    app()
