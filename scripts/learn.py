"""Toy runs in which every method of the catalogue learns, recorded in docs/learning.md.

All runs of a task begin with the same warmed-up model. Each method has its own learning rate, the best of three on a
seed that is none of those recorded. Finished runs are kept in the output folder and not repeated.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import learn_report
from claims import NOT_RUN
from finished import finished
from grouprl import methods
from grouprl.algorithms.part import RunFacts
from grouprl.core.errors import GrouprlError, RunError
from grouprl.experiments.design import TUNING_SEED
from grouprl.methods.registry import Entry
from grouprl.storage.run_folder import write_json
from learn_report import CONTROL, TAUGHT

Settings = dict[str, Any]
CENTRAL = ("grpo", "dr_grpo", "dapo", "gspo", "rloo", "ppo", "cispo", "reinforce_pp")
"""Methods with three seeds on the first task."""
ON_BOTH = ("group", "capped", "sequence", "reinforce", "baselines", "rejection", "critic")
"""Families of the catalogue that run on both tasks, the others on the first."""

TASKS: dict[str, Settings] = {
    "reverse": {
        "task": {"name": "reverse", "length": 6, "noise": 0.15},
        "model": {"name": "tiny", "tiny": {"layers": 2}},
        "warmup": {"steps": 500, "batch": 128},
    },
    "addition": {
        "task": {"name": "addition", "digits": 2, "think": 0.3},
        "model": {"name": "tiny", "tiny": {"layers": 3}},
        "warmup": {"steps": 900, "batch": 128},
    },
}
COMMON: Settings = {
    "steps": 60,
    "batch": {"prompts": 32, "group_size": 16, "minibatches": 2},
    "optim": {"lr": 1e-3, "warmup_steps": 5},
    "eval": {"every": 0, "final_prompts": 512, "samples": 4},
    "run": {"rollouts_every": 0, "checkpoint_every": 10**6, "threads": 1},
}
PER_TASK: dict[str, Settings] = {"reverse": {}, "addition": {"steps": 80, "optim": {"lr": 5e-4, "warmup_steps": 10}}}
FORMS: Settings = {
    "task": {"name": "ponder", "length": 4, "dots": 6, "budgeted": 0.0},
    "model": {"name": "tiny", "tiny": {"layers": 2}},
    "warmup": {"steps": 500, "batch": 128},
}
"""For methods that depend on the form of completions."""
TASKS["ponder"] = FORMS
PER_TASK["ponder"] = {}
FEW: Settings = {"data": {"prompts": 1024}}
"""For methods that come back to prompts."""
SPECIAL: dict[str, Settings] = {
    "dump": {"task": {"shortest": 4}},
    "self": {"task": {"shortest": 4}},
    "pppo": {"method": {"name": "pppo", "prefix_start": 0.5, "prefix_limit": 0.5}},
    "harpg": {"optim": {"lr": 0.3}},
    "n_pg_igt": {"optim": {"lr": 0.3}},
}
"""What single methods need: several levels to choose from, prompts that are not solved greedily, a beginning of more
than one of seven tokens; rates of steps whose whole length is the rate, where AdamW moves each weight by so much."""
ELSEWHERE = {"dapo_direct": "addition"}
"""Methods that are tried on another task besides the first. One-step advantages need a critic that foresees something:
on `reverse` that of this model explains no variance at all, and dapo_direct falls from 0.42 to 0.30 there."""
FACTORS = (1 / 3, 1, 3)
"""The learning rates that are tried, in multiples of the task's."""
THINKING = ("hbpo", "brpo")
"""Methods that budget thoughts."""
ONE_UPDATE: Settings = {"batch": {"minibatches": 1}}
"""For methods that are only right on-policy."""
CONTROL_SETTINGS: Settings = {"reward": {"function": f"{Path(__file__)}:coin"}}


def coin(completion: str, *, answer: str) -> dict[str, float]:
    """A reward that has nothing to do with the task; `correct` keeps the evaluation honest."""
    return {"reward": float(zlib.crc32(f"{answer}/{completion}".encode()) & 1), "correct": float(completion == answer)}


@dataclass(frozen=True)
class Trial:
    """One run: a method with its settings on a task with a seed."""

    task: str
    method: str
    seed: int

    @property
    def words(self) -> str:
        """Task and method, as folders are named by them."""
        return f"{self.task}-{self.method.replace('@', '-at-').replace(', ', '-')}"

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.words}-s{self.seed}"


def trials(dialects: bool) -> Iterator[Trial]:
    """Yield what is to be run: everything once on the first task, the modules `ON_BOTH` on the second too, then the
    central methods on the first task again, and a control."""
    entries = {n: e for n, e in methods().items() if n != TAUGHT and (dialects or not e.dialect_of)}
    names = sorted(entries, key=lambda n: n not in CENTRAL)
    first = next(iter(TASKS))
    names = [name for name in names if name not in NOT_RUN]
    for name in names:
        yield Trial("ponder" if name in THINKING or refused(name, forms=0) else first, name, 0)
        if name in ELSEWHERE:
            yield Trial(ELSEWHERE[name], name, 0)
    yield from (Trial("addition", name, 0) for name in names if _module(entries[name]) in ON_BOTH)
    yield from (Trial("reverse", name, seed) for seed in (1, 2) for name in CENTRAL)
    yield Trial("reverse", CONTROL, 0)


def _module(entry: Entry) -> str:
    """Name of the module that holds an entry."""
    return entry.function.__module__.rpartition(".")[2]


def refused(name: str, **facts: Any) -> bool:
    """Whether a part of the method refuses a run of which `facts` are true."""
    run = RunFacts(**{"examples": 1024, **facts})
    return any(part.refuse(run) for part in methods()[name].build().parts())


def merged(*settings: Mapping[str, Any]) -> Settings:
    """Settings laid over each other, section by section; later ones win."""
    result: Settings = {}
    for each in settings:
        for key, value in each.items():
            old = result.get(key)
            both = isinstance(old, Mapping) and isinstance(value, Mapping)
            result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def recorded(settings: Settings) -> Settings:
    """What is recorded of a run's configuration: everything but folders."""
    return {key: value for key, value in settings.items() if key not in ("model", "reward", "run")}


def config_of(trial: Trial, model: Path, changes: Settings) -> Settings:
    """The trial's configuration as plain data."""
    name = trial.method.split(", ")[0]
    entry = methods().get(name)
    return merged(
        COMMON,
        {"task": TASKS[trial.task]["task"], "model": str(model), "method": name, "seed": trial.seed},
        PER_TASK[trial.task],
        ONE_UPDATE if entry is not None and entry.build().on_policy else {},
        FEW if entry is not None and refused(name, examples=None) else {},
        CONTROL_SETTINGS if trial.method == CONTROL else {},
        SPECIAL.get(name, {}),
        changes,
        {"warmup": {"steps": 0}},
    )


def warm_start(task: str, out: Path, changes: Settings) -> Path:
    """Imitate the task's demonstrations once; returns the folder of the model. Recorded as the run of `sft`."""
    folder = out / f"{task}-{TAUGHT}-s0"
    if not (folder / "outcome.json").is_file():
        # Without warm-up and without steps a run evaluates the untouched model.
        settings = merged(COMMON, TASKS[task], {"method": TAUGHT, "steps": 0}, changes, {"steps": 0})
        fresh = _run(merged(settings, {"warmup": {"steps": 0}}), out / f"{task}-untrained")
        warm = _run(settings, folder)
        outcome = {
            "task": task,
            "method": TAUGHT,
            "seed": 0,
            "config": recorded(settings),
            **warm,
            "before": fresh["before"],
            "after": {name: value for name, value in warm["after"].items() if "_gain" not in name},
        }
        outcome["curve"] = []
        write_json(folder / "outcome.json", outcome)
    return folder / "model"


def run_trial(trial: Trial, out: Path, changes: Settings) -> Settings:
    """Run one trial, unless its outcome is there already; a refused or broken run is an outcome too,
    but not kept."""
    path = out / trial.name / "outcome.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    settings = config_of(trial, warm_start(trial.task, out, changes), changes)
    head = {"task": trial.task, "method": trial.method, "seed": trial.seed, "config": recorded(settings)}
    try:
        tried = {rate: passed(settings, rate, out / f"{trial.words}-lr{rate}") for rate in rates(settings)}
        settings = merged(settings, {"optim": {"lr": float(best_rate(tried))}})
        head |= {"config": recorded(settings), "tried": tried}
        outcome = {**head, **_run(settings, path.parent)}
    except GrouprlError as error:
        return {**head, "error": str(error)}
    write_json(path, outcome)
    return outcome


def rates(settings: Settings) -> list[str]:
    """Return the learning rates that are tried."""
    return [f"{settings['optim']['lr'] * factor:.2g}" for factor in FACTORS]


def passed(settings: Settings, rate: str, folder: Path) -> float | None:
    """Return pass@1 after training at a rate, with the seed of the sweep; None where the weights were lost.

    Raises:
        GrouprlError: the run was refused.
    """
    path = folder / "passed.json"
    if not path.is_file():
        try:
            run = _run(merged(settings, {"seed": TUNING_SEED, "optim": {"lr": float(rate)}}), folder)
        except RunError:
            return None
        write_json(path, round(run["after"]["eval/pass@1"], 4))
    found: float = json.loads(path.read_text(encoding="utf-8"))
    return found


def best_rate(tried: Mapping[str, float | None]) -> str:
    """Return the rate with the highest pass@1, the lowest of equals."""
    return max(tried, key=lambda rate: -1.0 if tried[rate] is None else tried[rate])


def _run(settings: Settings, folder: Path) -> Settings:
    """Train and return evaluations before and after, seconds of training, and pass@1 of each step's own completions."""
    start = time.perf_counter()
    _clear_unfinished(folder)
    finished(settings, folder)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = [round(record["pass@1"], 4) for record in records if record["phase"] == "train" and "pass@1" in record]
    seconds = round(time.perf_counter() - start, 1)
    return {"before": summary["before"], "after": summary["after"], "curve": curve, "seconds": seconds}


def _clear_unfinished(folder: Path) -> None:
    if folder.is_dir():
        # Whatever was cut off is begun anew, beside what is left of it.
        folder.rename(folder.with_name(f"{folder.name}.cut-off-{time.time_ns()}"))


def known_outcomes(docs: Path) -> list[Settings]:
    """Return the runs of the record; none if there is no record."""
    path = docs / "learning.json"
    found: list[Settings] = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else []
    return found


def identity(outcome: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return what tells an outcome from others."""
    return outcome["task"], outcome["method"], outcome["seed"]


def joined(outcomes: Sequence[Settings], newer: Sequence[Settings]) -> list[Settings]:
    """Return the runs of a record with newer ones in the place of older ones of the same method, task and seed."""
    return list({identity(outcome): outcome for outcome in (*outcomes, *newer)}.values())


def main(
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = Path(
        "runs/learn"
    ),
    docs: Annotated[Path, typer.Option(help="Where learning.md, .json and .svg are written.")] = Path("docs"),
    dialects: Annotated[bool, typer.Option("--all", help="Run the dialects too.")] = False,
    only: Annotated[str, typer.Option(help="Only runs whose name contains this.")] = "",
    missing: Annotated[bool, typer.Option(help="Only methods without a run at their own rate.")] = False,
) -> None:
    """Let every method of the catalogue learn, and write each into the record as it comes; other rows stay."""
    console, outcomes = Console(), known_outcomes(docs)
    there = {identity(outcome) for outcome in outcomes if "tried" in outcome} if missing else set()
    for trial in trials(dialects):
        if only in trial.name and (trial.task, trial.method, trial.seed) not in there:
            outcome = run_trial(trial, out, {})
            console.print(learn_report.line(outcome), soft_wrap=True)
            if missing and "error" in outcome:
                continue  # of another kind of task, or broken: what the record has of it stays
            outcomes = joined(outcomes, [warm_outcome(trial.task, out), outcome])
            learn_report.write(outcomes, docs)


def warm_outcome(task: str, out: Path) -> Settings:
    """Return what is recorded of a task's warm-up."""
    found: Settings = json.loads((out / f"{task}-{TAUGHT}-s0" / "outcome.json").read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    typer.run(main)
