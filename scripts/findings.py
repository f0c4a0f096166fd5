"""Short runs at good, tiny and huge learning rates, and what findings and plan say of them: docs/findings.md.

The runs of a task begin with one warmed-up model; where adapters are put on a model as initialised, each warms up
its own. Recorded runs are not repeated.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.console import Console

from finished import finished
from grouprl.config.run import parse_config
from grouprl.monitor.outcome import verdict
from grouprl.plan.plan import plan
from grouprl.storage.run_folder import write_json, write_text

Settings = dict[str, Any]
DOCS = Path(__file__).parents[1] / "docs"
JSON, PAGE = DOCS / "findings.json", DOCS / "findings.md"
RATES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
ADAPTER_RATES, RANKS = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2), (4, 16, 64)
RANK, WARMUP_RATE = 16, 3e-3
"""Where a trial says nothing else; the tiny model is 64 wide, so that adapters of rank 64 can be any matrix."""
MODEL: Settings = {"name": "tiny", "tiny": {"layers": 2}}
TASKS: dict[str, tuple[Any, int]] = {
    "reverse": ({"name": "reverse", "length": 4, "noise": 0.15}, 250),
    "addition": ({"name": "addition", "digits": 1, "think": 0.3}, 250),
    "guess": ({"name": "guess", "numbers": 7, "noise": 0.3}, 150),
    "keys": ({"name": "keys", "size": 3, "walls": 1}, 150),
}
"""Tasks of this package, and the steps of their warm-up."""
COMMON: Settings = {
    "steps": 20,
    "batch": {"prompts": 16, "group_size": 8, "minibatches": 2},
    "optim": {"schedule": "constant"},
    "eval": {"every": 0, "final_prompts": 192, "samples": 2},
    "run": {"threads": 1, "rollouts_every": 0, "checkpoint_every": 10**6},
}
SAID = ("stands_still", "moves_too_fast", "no_gain", "collapse", "large_update")


class Trial(NamedTuple):
    """A run: rank 0 trains every weight; `base` says on what adapters are put."""

    task: str
    lr: float
    rank: int = 0
    base: Literal["warmed", "random"] = "warmed"
    warmup_lr: float = WARMUP_RATE


def trials() -> Iterator[Trial]:
    """Yield what is tried."""
    yield from (Trial(task, rate) for task in TASKS for rate in RATES)
    yield from (Trial("reverse", rate, rank) for rank in RANKS for rate in ADAPTER_RATES)
    yield from (Trial("reverse", rate, RANK, "random") for rate in ADAPTER_RATES)
    yield from (Trial("reverse", 1e-3, rank, "random", warmup_lr) for rank in RANKS for warmup_lr in (1e-2, 3e-2))


def warmed(task: str, folder: Path) -> str:
    """Return the folder of the task's warmed-up model."""
    options, steps = TASKS[task]
    start = {**COMMON, "task": options, "model": MODEL, "warmup": {"steps": steps, "batch": 64}, "steps": 0}
    return str(finished(start, folder / task).folder / "model")


def run(trial: Trial, model: str, folder: Path) -> Settings:
    """Train once, and return what was measured and what was said of it."""
    settings = configuration(trial, model)
    outcome = finished(settings, folder / str(hash(trial)))
    lines = [json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    summary = json.loads((outcome.folder / "summary.json").read_text(encoding="utf-8"))
    findings = json.loads((outcome.folder / "health.json").read_text(encoding="utf-8"))
    steps_taken = [line for line in lines if line["phase"] == "train"]
    ratios = sorted(line["update_ratio"] for line in steps_taken if "update_ratio" in line)
    return {
        **trial._asdict(),
        "before": ends(summary["before"]),
        "after": ends(summary["after"]),
        "verdict": verdict(summary["before"], summary["after"]).kind,
        "ratio": ratios[-1] if ratios else 0.0,
        "median_ratio": ratios[len(ratios) // 2] if ratios else 0.0,
        "kl_old": max(line.get("kl_old", 0.0) for line in steps_taken),
        "plan": foreseen(trial),
        "findings": [found["code"] for found in findings if found["code"] in SAID],
    }


def configuration(trial: Trial, model: str) -> Settings:
    """Return the configuration of a trial; `model` is the folder of the warmed-up one."""
    options, steps = TASKS[trial.task]
    chosen: Settings = {"name": model} if trial.base == "warmed" else dict(MODEL)
    found = {**COMMON, "task": options, "optim": {**COMMON["optim"], "lr": trial.lr}}
    if trial.rank:
        chosen |= {"lora": {"r": trial.rank, "alpha": 2 * trial.rank}}
    if trial.base == "random":
        found |= {"warmup": {"steps": steps, "batch": 64, "lr": trial.warmup_lr}}
    return found | {"model": chosen}


def foreseen(trial: Trial) -> list[str]:
    """Return what the plan says of the rate, for the tiny model."""
    found = configuration(trial, "tiny")
    notes = plan(parse_config(found | {"model": {**found["model"], **MODEL}})).notes
    return [word for word in ("stand still", "too fast") if any(word in note for note in notes)]


def silent() -> Console:
    """Return a console that shows nothing."""
    return Console(file=io.StringIO())


def ends(record: Settings) -> list[float]:
    """Return the mean reward of an evaluation and its interval."""
    return [round(record[f"eval/reward{end}"], 4) for end in ("", "_low", "_high")]


def page(records: list[Settings]) -> str:
    """Return docs/findings.md."""
    full = [each for each in records if not each["rank"]]
    warmed_up = [each for each in records if each["rank"] and each["base"] == "warmed"]
    fresh = [each for each in records if each["base"] == "random"]
    return TEXT.format(
        full=table(full, ("task", "lr")),
        warmed=table(warmed_up, ("rank", "lr")),
        fresh=table(fresh, ("rank", "warmup_lr", "lr")),
    )


def table(records: list[Settings], keys: tuple[str, ...]) -> str:
    """Return runs as a table; `keys` say in what they differ."""
    names = [*(HEADS.get(key, key) for key in keys), "held-out reward before", "after", "verdict", "largest step"]
    names += ["KL of a step", "plan", "findings"]
    return f"| {' | '.join(names)} |\n" + "| --- " * len(names) + "|\n" + "".join(row(each, keys) for each in records)


def row(found: Settings, keys: tuple[str, ...] = ("task", "rank", "lr")) -> str:
    """Return one run's line."""
    intervals = ["{:.3f} [{:.3f}, {:.3f}]".format(*found[side]) for side in ("before", "after")]
    said = [", ".join(f"`{key}`" for key in found["findings"]), ", ".join(found["plan"])]
    shown = (f"{found[key]:g}" if isinstance(found[key], float) else str(found[key]) for key in keys)
    cells = [*shown, *intervals, found["verdict"], f"{found['ratio']:.1e}", f"{found['kl_old']:.1e}", said[1], said[0]]
    return f"| {' | '.join(cells)} |\n"


HEADS = {"warmup_lr": "lr of the warm-up"}
TEXT = """<!-- Made from docs/findings.json by scripts/findings.py. -->
# Learning rates, and what findings say of them

What `grouprl plan` and the findings of a run say about the learning rate, held against short runs: four tasks of this
package, a tiny model of two layers, seed 0, 20 steps of 16 prompts with 8 completions and two optimiser steps each, a
constant rate. Rewards are of 192 held-out prompts, two completions each, with 95 % intervals. "Largest step" is the
norm of an optimiser step over that of the weights, "KL of a step" what the updates of a rollout moved (`kl_old`).
Thresholds: `STILL`, `FAST_TINY` and `FAST` of `grouprl.config.rates`, `RATIO_FAST` of `grouprl.monitor.movement`;
those of single kinds of weights, of noise and of signs stand in `grouprl.monitor.update_detectors`.

## What is calibrated, and what is not

- `STILL`, 0.1 nats in a whole run: stands still. Held against the tables below, where the first that learns does so
  at 0.5. Not shown: models that are not tiny.
- `FAST_TINY`, 0.4 nats a step: moves too fast, up to a width of 128. Below, those that learned did so at 0.22 and
  less, and those that lost most of what they knew at 0.44 and more, whatever was trained. `guess` lost a part at
  0.13, unwarned.
- `FAST`, 3 nats a step: the same for wider models. [135 million parameters](real.md), every weight trained, learn
  at 0.17. Where such a model breaks is not shown: none was pushed so far, and the bound is a guess.
- `RATIO_FAST`, a step of 3 % of the weights, where every weight is trained: below, learned at 0.6 %, lost at 5.6 %.
  The steps of wider models are far smaller, 0.002 % where the 135 million learned: there it comes late, if ever.
  The size of adapters says nothing of the weights that they change, so with them it is not asked.
- `KL_OLD_LARGE`, 0.2 nats per token: an update left its trust region. It does not depend on size: below, learned at
  0.05 and less, once at 0.14, lost at 0.12 and more; 135 million learned at 0.004 and less.
- `PART_FAST`, a step of 10 % of one kind of weights (embeddings, attention, MLP, norms, head), and `BEHIND`, one that
  is a thousandth of that of all weights. `grouprl train addition` moves each kind by 0.2 % at most, norms an eighth as
  far as the others; embeddings that were never warmed up learned at 3 %. Adapters and value heads begin at 0 and are
  left out of the first. Not shown: a run that fails between 3 and 10 %.
- `NOISIER`, a noise scale of ten times the groups of an optimiser step, with no gain after 20 steps. In the same run
  signal and noise were equal at 9 groups in the first ten steps, mostly at 126 to 392 afterwards, with 16 groups a
  step; between steps 30 and 50, and once the task was solved, no signal could be told. A run learns in spite of
  noise, and so the finding asks for the gain first. Two minibatches give one product of gradients a step, so that a
  mean over ten steps is still rough. It is not measured with one minibatch, on several processes, or by methods that
  take steps of their own.
- `LOPSIDED`, 90 % of the advantage of one sign: the same run had 43 to 64 % above 0, `keys` and `guess` 33 to 43 %.
- `TOLD_APART`, 5 % of the texts that are scored twice: a reward that is a function of its inputs has none. Completions
  that a group holds twice are compared for nothing; `reward.rescore` asks for more.

Nats of a step are `lr × hidden × layers`, times `alpha / sqrt(3 r hidden)` with adapters: by so much a weight
changes at first while what is trained changes by 1, about 0.6 for rank 16 on the tiny model, about 0.07 at a width
of 4096. That is why adapters of large models take ten times the rate and those of the tiny model do not.

## Every weight

The runs of a task begin with the same warmed-up model.

{full}
## Adapters on the warmed-up model

On every linear layer, alpha twice the rank, on the model of the first table. At 1e-3, the rate of `model: tiny`, all
ranks learn. A folder is no `tiny` to the configuration, so the rate has to be given: `optim: {{lr: 1e-3}}`.

{warmed}
## Adapters on weights as they were initialised

Each run warms up its own adapters, behind which the weights stay random. Nothing is learned, at no rank and no rate
of the warm-up or of reinforcement, and rank 64 can be any matrix: what fails is the output layer, which no adapter
changes. It is the embedding, whose entries have a size of 0.02, and the norm in front of it lets at most
sqrt(hidden) through, so that logits stay within about ±1.5 and no token gets more than a fifth of the probability.
The plan says so and names the way that works: warm up every weight, then put adapters on that run's model.

{fresh}"""


def trial_of(found: Settings) -> Trial:
    """Return what a record is of."""
    return Trial(*(found[key] for key in Trial._fields))


def main(limit: Annotated[int, typer.Option(help="Make so many runs at most.")] = 1000) -> None:
    """Make the runs that are not recorded, and write docs/findings.json and docs/findings.md."""
    records: list[Settings] = json.loads(JSON.read_text(encoding="utf-8")) if JSON.exists() else []
    models: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for trial in trials():
            if trial in {trial_of(each) for each in records} or limit == 0:
                continue
            if trial.base == "warmed" and trial.task not in models:
                models[trial.task] = warmed(trial.task, Path(folder))
            records.append(run(trial, models.get(trial.task, "tiny"), Path(folder)))
            limit -= 1
            write_json(JSON, records)
            write_text(PAGE, page(records))
            typer.echo(row(records[-1]), nl=False)
    for each in records:  # thresholds may have been moved since
        each["plan"] = foreseen(trial_of(each))
    write_json(JSON, records)
    write_text(PAGE, page(records))


if __name__ == "__main__":
    typer.run(main)
