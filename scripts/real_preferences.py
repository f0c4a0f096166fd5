"""Preference methods, a reward model, and GRPO against it on a pretrained model: docs/preferences.md, last table.

Each method has a rate of its own, the better of two by a shorter run of another seed. A run that is recorded is not
repeated while its recipe stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

import real
from grouprl.config.run import load_config
from grouprl.storage.run_folder import RunFolder, write_json
from held_out import figures
from page_record import fill

Record = dict[str, Any]
RECORD, PAGE = real.DOCS / "real_preferences.json", real.DOCS / "preferences.md"
MEASURES = ("greedy", "pass@1", "reward", "reward/gold", "pair_accuracy")
METHODS: dict[str, tuple[str, tuple[float, ...]]] = {
    "dpo": ("preferred", (5e-6, 2e-5, 6e-5)),
    "orpo": ("preferred", (1e-5, 4e-5)),
    "kto": ("preferred_labels", (2e-5,)),
    "bradley_terry": ("preferred_scores", (2e-5,)),
}
"""The recipe of each method, and the rates that are tried; a single one is taken untried."""
RIVAL, MODEL = "dpo", "bradley_terry"
TUNED_ON, SHORTER = 7, ("steps=6", "eval.final_prompts=48")
"""The seed on which rates are tried, and what is set then."""
AGAINST = "dr_grpo"
"""What is paid by the reward model of the same seed, at the recipe's own rate."""


def version(recipe: str) -> str:
    """Return a hash of a recipe and of the data that it names."""
    text = (real.RECIPES / f"{recipe}.yaml").read_bytes()
    data = sorted(path for path in real.RECIPES.glob("sum_*.jsonl") if path.name.encode() in text)
    return hashlib.sha256(b"".join([text, *(path.read_bytes() for path in data)])).hexdigest()[:12]


def run(arm: str, seed: int, model: str, changes: Sequence[str], recipe: str, tuning: bool) -> Record:
    """Train, or return what is recorded of the same run."""
    known = {"arm": arm, "seed": seed, "changes": list(changes), "version": version(recipe)}
    for each in records():
        if all(each[key] == value for key, value in known.items()):
            return each
    folder = folder_of(arm, seed, known["version"], changes)
    given = [f"seed={seed}", f"model.name={model}", f"method={arm}", *changes]
    seconds = real.trained(recipe, given, folder)
    found = {**known, "tuning": tuning, **read(folder), "seconds": round(seconds)}
    keep(found)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    if arm != MODEL or tuning:
        shutil.rmtree(folder / "model", ignore_errors=True)
    return found


def tuned(arm: str, recipe: str, rates: Sequence[float], model: str) -> float:
    """Return the rate at which a shorter run of another seed ends best."""
    if len(rates) == 1:
        return rates[0]
    tried = {lr: good(run(arm, TUNED_ON, model, [f"optim.lr={lr}", *SHORTER], recipe, True)) for lr in rates}
    return max(tried, key=lambda lr: tried[lr])


def folder_of(arm: str, seed: int, hashed: str, changes: Sequence[str]) -> Path:
    """Return the folder of a run."""
    what = hashlib.sha256("\n".join(changes).encode()).hexdigest()[:6]
    return real.RUNS / f"{arm}-s{seed}-{hashed}-{what}"


def read(folder: Path) -> Record:
    """Return the numbers of a finished run."""
    lines, config = RunFolder(folder).read_metrics(), load_config(str(folder / "config.yaml"))
    held_out = [line for line in lines if line["phase"] == "eval"]
    steps = [line for line in lines if line["phase"] == "train"]
    return {
        "lr": config.optim.lr,
        "steps": len(steps),
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


def keep(row: Record) -> None:
    """Record a run, without those of earlier recipes, and write the tables."""
    stale = (row["arm"], row["seed"], row["changes"])
    kept = [each for each in records() if (each["arm"], each["seed"], each["changes"]) != stale]
    write_json(RECORD, [*kept, row])
    fill(PAGE, tables([*kept, row]))


def good(record: Record) -> float:
    """Return the number by which rates are compared: the mean of the shares that are right, greedy and sampled."""
    after = record["after"]
    return float(after["greedy"] + after["pass@1"]) / 2


def tables(found: Sequence[Record]) -> dict[str, str]:
    """Return the tables of the page."""
    final = [each for each in found if not each["tuning"]]
    methods = [each for each in final if each["arm"] in METHODS and each["arm"] != MODEL]
    scored = [each for each in final if each["arm"] in (MODEL, AGAINST)]
    head = ("method", "rate", "steps", "seed", "greedy", "gain", "sampled", "gain", f"sampled, beside {RIVAL}")
    return {
        "pretrained": table((*head, "CPU minutes"), [_method(each, methods) for each in _sorted(methods)]),
        "pretrained scores": table(
            ("what is trained", "rate", "steps", "seed", "before", "after", "gain", "CPU minutes"),
            [cells for each in _sorted(scored) for cells in _scored(each)],
        ),
        "pretrained rates": table(
            ("method", "rate", "steps", "after"),
            [(e["arm"], f"{e['lr']:g}", e["steps"], f"{good(e):.3f}") for e in found if e["tuning"]],
        ),
    }


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table of the page."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _sorted(found: Sequence[Record]) -> list[Record]:
    order = [*METHODS, AGAINST]
    return sorted(found, key=lambda each: (order.index(each["arm"]), each["seed"]))


def _method(record: Record, others: Sequence[Record]) -> list[object]:
    cells = [cell for kind in ("greedy", "pass@1") for cell in _change(record, kind)]
    rival = next((e for e in others if (e["arm"], e["seed"]) == (RIVAL, record["seed"])), None)
    return [*_named(record, record["arm"]), *cells, beside(record, rival), _minutes(record)]


def _scored(record: Record) -> list[list[object]]:
    """Return a line per measure: of a reward model its pairs, of the policy what is paid and what is true."""
    if record["arm"] == MODEL:
        kinds = {"pair_accuracy": "reward model, held-out pairs ranked right"}
    else:
        kinds = {"reward": "policy, reward paid", "reward/gold": "policy, true reward", "pass@1": "policy, right"}
    return [
        [*_named(record, name), *_ends(record, kind), _change(record, kind)[1], _minutes(record)]
        for kind, name in kinds.items()
    ]


def _named(record: Record, name: str) -> list[object]:
    return [name, f"{record['lr']:g}", record["steps"], record["seed"]]


def _minutes(record: Record) -> str:
    return f"{record['seconds'] / 60:.1f}"


def _ends(record: Record, kind: str) -> list[str]:
    return [f"{record[end][kind]:.3f}" for end in ("before", "after")]


def _change(record: Record, kind: str) -> list[str]:
    """Return a measure before and after, and its gain on the same prompts with its interval."""
    low, gain, high = (record["after"][f"{kind}_gain{end}"] for end in ("_low", "", "_high"))
    return [" → ".join(_ends(record, kind)), f"{gain:+.3f} [{low:+.3f}, {high:+.3f}]"]


def beside(one: Record, other: Record | None) -> str:
    """Return the difference of two shares after training with Newcombe's interval, which takes the prompts of both for
    independent and so is too wide rather than too narrow."""
    if other is None or one["arm"] == other["arm"]:
        return ""
    mine, yours = ([each["after"][f"pass@1{end}"] for end in ("_low", "", "_high")] for each in (one, other))
    gap = mine[1] - yours[1]
    low = gap - math.hypot(mine[1] - mine[0], yours[2] - yours[1])
    high = gap + math.hypot(mine[2] - mine[1], yours[1] - yours[0])
    return f"{gap:+.3f} [{low:+.3f}, {high:+.3f}]"


def main(seeds: int = 2) -> None:
    """Run what is not recorded yet."""
    model, _ = real.fetch(real.RUNS / "model")
    best = dict[str, list[str]]()
    for arm, (recipe, rates) in METHODS.items():
        best[arm] = [f"optim.lr={tuned(arm, recipe, rates, model)}"]
    for seed in range(seeds):
        for arm, (recipe, _) in METHODS.items():
            scores = run(arm, seed, model, best[arm], recipe, False)
        folder = folder_of(MODEL, seed, scores["version"], scores["changes"]) / "model"
        run(AGAINST, seed, model, [f"reward.model={folder}"], "preferred_scored", False)


if __name__ == "__main__":
    typer.run(main)
