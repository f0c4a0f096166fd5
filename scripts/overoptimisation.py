"""GRPO against learned reward models whose true reward is known: docs/reward_models.md, table of over-optimisation."""

from __future__ import annotations

import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from finished import finished
from grouprl.storage.run_folder import write_json, write_text
from held_out import figures

Settings = dict[str, Any]
DOCS = Path(__file__).parents[1] / "docs"
JSON, PAGE = DOCS / "overoptimisation.json", DOCS / "reward_models.md"
BEGIN, END = "<!-- recorded -->", "<!-- /recorded -->"
TINY: Settings = {"name": "tiny", "tiny": {"layers": 2}}
POOR: Settings = {"task": {"name": "preferences", "noise": 0.1, "length_bias": 0.08}, "data": {"prompts": 256}}
RICH: Settings = {"task": {"name": "preferences"}, "data": {"prompts": 8192}, "steps": 240}
ARMS: dict[str, tuple[Settings, int, Settings]] = {
    "poor model": (POOR, 1, {}),
    "poor model, kl_coef 0.1": (POOR, 1, {"method": {"base": "grpo", "kl_coef": 0.1}}),
    "mean of 3 poor models": (POOR, 3, {"combine": "mean"}),
    "worst of 3 poor models": (POOR, 3, {"combine": "worst"}),
    "mean - variance of 3 poor models": (POOR, 3, {"combine": "uncertainty"}),
    "rich model": (RICH, 1, {}),
}
"""The data of the reward model, how many are trained, and what else is set."""
MEASURES = ("reward", "reward/gold")
EVERY = 10
"""Steps between the points of a curve, each a mean over so many steps."""


def reward_model(data: Settings, seed: int, folder: Path) -> float:
    """Train a reward model and return its pair accuracy on held-out pairs."""
    settings: Settings = {
        "model": TINY,
        "method": "bradley_terry",
        "batch": {"prompts": 64, "group_size": 2},
        "optim": {"lr": 1e-3, "warmup_steps": 5},
        "steps": 60,
        "seed": seed,
        "eval": {"every": 0, "final_prompts": 256},
        "run": {"threads": 1},
        **data,
    }
    finished(settings, folder)
    return float(lines(folder, "eval")[-1]["eval/pair_accuracy"])


def run(arm: str, seed: int, models: list[Path], folder: Path) -> Settings:
    """Train a policy against reward models; return the curve of both rewards, and what was said."""
    more = dict(ARMS[arm][2])
    combine = {"combine": more.pop("combine")} if "combine" in more else {}
    begun = time.process_time()
    settings: Settings = {
        "task": {"name": "words", "longest": 6, "room": 6},
        "model": TINY,
        "warmup": {"steps": 200, "batch": 64, "lr": 3e-3},
        "method": {"base": "grpo", "kl_coef": 0.001},
        "reward": {"model": {"name": [str(model) for model in models], **combine}, "gold": "task"},
        "batch": {"prompts": 16, "group_size": 8, "minibatches": 2},
        "optim": {"lr": 6e-4, "warmup_steps": 5},
        "steps": 100,
        "seed": seed,
        "eval": {"every": 0, "final_prompts": 256},
        "run": {"threads": 1},
        **more,
    }
    finished(settings, folder)
    evals, steps = lines(folder, "eval"), lines(folder, "train")
    said = json.loads((folder / "health.json").read_text(encoding="utf-8"))
    return {
        "arm": arm,
        "seed": seed,
        "before": figures(evals[0], MEASURES, 3),
        "after": figures(evals[-1], MEASURES, 3),
        "curve": [point(steps[at : at + EVERY]) for at in range(0, len(steps), EVERY)],
        "said": [each["severity"] for each in said if each["code"] == "overoptimisation"],
        "seconds": round(time.process_time() - begun),
    }


def point(steps: list[Settings]) -> Settings:
    """Return the means of a few steps: the KL per token to the first policy, the paid and the true reward."""
    names = {"kl": "kl_ref", "paid": "reward_mean", "gold": "reward/gold"}
    return {name: round(sum(line[key] for line in steps) / len(steps), 3) for name, key in names.items()}


def lines(folder: Path, phase: str) -> list[Settings]:
    """Return the records of a phase."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in found if line["phase"] == phase]


def silent() -> Console:
    """Return a console that shows nothing."""
    return Console(file=io.StringIO())


def table(records: list[Settings]) -> str:
    """Return a row per run."""
    head = ("reward", "seed", "pair accuracy", "paid", "true before", "true after", "best on the way", "KL", "finding")
    rows = "".join(f"| {' | '.join(map(str, _cells(each)))} |\n" for each in records)
    return f"| {' | '.join(head)} |\n{'| --- ' * len(head)}|\n{rows}"


def _cells(record: Settings) -> list[object]:
    before, after, curve = record["before"], record["after"], record["curve"]
    best = max(curve, key=lambda each: each["gold"])
    accuracy = ", ".join(f"{each:.2f}" for each in record["accuracy"])
    return [
        record["arm"],
        record["seed"],
        accuracy,
        f"{before['reward']:.2f} → {after['reward']:.2f}",
        _interval(before),
        _interval(after),
        f"{best['gold']:.2f} at KL {best['kl']:.2f}",
        f"{curve[-1]['kl']:.2f}",
        ", ".join(record["said"]),
    ]


def _interval(found: dict[str, float], name: str = "reward/gold") -> str:
    return f"{found[name]:.2f} [{found[f'{name}_low']:.2f}, {found[f'{name}_high']:.2f}]"


def main(seeds: int = 3) -> None:
    """Run everything, and write docs/overoptimisation.json and the table of docs/reward_models.md."""
    records: list[Settings] = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as place:
            folder, trained = Path(place), dict[str, tuple[Path, float]]()
            for number, (arm, (data, count, _)) in enumerate(ARMS.items()):
                names = [f"{'rich' if data is RICH else 'poor'}{each}" for each in range(count)]
                for each, name in enumerate(names):
                    if name not in trained:
                        trained[name] = folder / name, reward_model(data, 100 * seed + each, folder / name)
                found = run(arm, seed, [trained[name][0] for name in names], folder / f"run{number}")
                records.append(found | {"accuracy": [trained[name][1] for name in names]})
                typer.echo(table(records[-1:]).splitlines()[-1])
                write_json(JSON, records)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    write_text(PAGE, f"{before}{BEGIN}\n{table(records)}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    typer.run(main)
