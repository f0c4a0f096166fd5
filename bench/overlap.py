"""Asynchronous against synchronous training: seconds per step, and what is learnt from older completions.

The runs of a table take turns, round by round, so that whatever else the machine does disturbs all of them. Writes
docs/bench_overlap.md.
"""

from __future__ import annotations

import io
import json
import logging
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import machine
import report
from grouprl.config.run import parse_config
from grouprl.storage.run_folder import write_text
from grouprl.training.loop import train

PACKAGES = ("grouprl", "torch", "transformers")
TOKEN_MEAN = {"base": "grpo", "aggregate": "token_mean"}
CORRECTIONS: dict[str, dict[str, Any]] = {
    "none: grpo, old log-probs computed anew": {"method": TOKEN_MEAN},
    "ratio to the sampler: grpo, proximal: sampler": {"method": TOKEN_MEAN, "proximal": "sampler"},
    "decoupled_ppo": {"method": "decoupled_ppo"},
    "decoupled_ppo, interpolated": {"method": {"base": "decoupled_ppo", "proximal": "interpolated"}},
    "m2po": {"method": "m2po"},
    "dppo_mask": {"method": "dppo_mask"},
}


@dataclass
class Runner:
    """Runs configurations in a folder of its own and reads what they leave."""

    home: Path
    count: int = field(default=0)

    def run(self, config: dict[str, Any]) -> Path:
        """Run one configuration; returns its folder."""
        self.count += 1
        folder = self.home / f"run-{self.count}"
        logging.disable(logging.WARNING)
        return train(parse_config(config), folder=folder, console=Console(file=io.StringIO())).folder

    def warm(self, config: dict[str, Any]) -> str:
        """Return the model folder of a run that only warms up."""
        return str(self.run({**config, "steps": 0}) / "model")


def records(folder: Path, phase: str) -> list[dict[str, Any]]:
    """Records of a phase of a run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["phase"] == phase]


def race(runner: Runner, rounds: int, steps: int) -> report.Rows:
    """Seconds per step of the synchronous run with one and two threads, and of asynchronous ones with one each."""
    warmup = {"steps": 300, "batch": 64, "lr": 3e-3}
    job = {
        "task": "addition",
        "model": runner.warm({"task": "addition", "warmup": warmup, "eval": {"every": 0, "final_prompts": 16}}),
        "method": TOKEN_MEAN,
        "steps": steps,
        "batch": {"prompts": 32, "minibatches": 2},
        "optim": {"lr": 1e-8},
        "eval": {"every": 0, "final_prompts": 16},
    }
    kinds: dict[str, dict[str, Any]] = {
        "synchronous, 1 thread": {"threads": 1},
        "synchronous, 2 threads": {"threads": 2},
        "async_steps 1, 1 thread each": {"threads": 1, "async_steps": 1},
        "async_steps 4, 1 thread each": {"threads": 1, "async_steps": 4},
        "async_steps 1, proximal: sampler": {"threads": 1, "async_steps": 1, "proximal": "sampler"},
    }
    return _raced(runner, job, kinds, rounds)


def uneven(runner: Runner, rounds: int, steps: int) -> report.Rows:
    """Seconds per step where lengths differ: a model that is not trained ends its completions by chance."""
    size = {"hidden": 64, "layers": 3, "heads": 4, "max_positions": 288}
    job = {
        "task": "addition",
        "model": {"name": "tiny", "tiny": size},
        "warmup": {"steps": 0},
        "method": TOKEN_MEAN,
        "steps": steps,
        "sampling": {"max_new_tokens": 256},
        "batch": {"prompts": 4, "group_size": 4},
        "optim": {"lr": 1e-8},
        "eval": {"every": 0, "final_prompts": 1},
    }
    kinds: dict[str, dict[str, Any]] = {
        "synchronous, 1 thread": {"threads": 1},
        "async_steps 2, samplers 0": {"threads": 1, "async_steps": 2, "samplers": 0},
        "async_steps 4, samplers 0": {"threads": 1, "async_steps": 4, "samplers": 0},
        "async_steps 2, samplers 1": {"threads": 1, "async_steps": 2},
    }
    return _raced(runner, job, kinds, rounds)


def _raced(runner: Runner, job: dict[str, Any], kinds: dict[str, dict[str, Any]], rounds: int) -> report.Rows:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, settings in kinds.items():
            found[name].append(_step_times(records(runner.run({**job, "run": settings}), "train")))
    plain = [times["seconds"] for times in found["synchronous, 1 thread"]]
    return [_race_row(name, times, plain) for name, times in found.items()]


def _step_times(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean seconds of the steps of the second half, by what they went into."""
    half = steps[len(steps) // 2 :]
    span = (half[-1]["seconds"] - steps[len(steps) // 2 - 1]["seconds"]) / len(half)
    names = ("seconds_rollout", "seconds_update", "seconds_wait", "seconds_sampler_idle", "staleness_mean")
    return {"seconds": span, **{name: statistics.fmean(r.get(name, 0.0) for r in half) for name in names}}


def _race_row(name: str, times: list[dict[str, float]], plain: list[float]) -> list[str]:
    def median(key: str) -> str:
        return f"{statistics.median(t[key] for t in times):.3f}"

    ratios = [p / t["seconds"] for p, t in zip(plain, times, strict=True)]
    spread = f"{min(ratios):.2f} … {max(ratios):.2f}"
    keys = ("seconds", "seconds_rollout", "seconds_update", "seconds_wait", "seconds_sampler_idle", "staleness_mean")
    return [name, *map(median, keys), f"{statistics.median(ratios):.2f}", spread]


def learning(runner: Runner, seeds: int, steps: int, rate: float) -> Iterator[report.Rows]:
    """pass@1 before and after training, without and with running ahead, by how older completions are corrected for.

    Yields the table after each seed.
    """
    common = {
        "task": {"name": "reverse", "length": 4},
        "model": {"name": "tiny", "tiny": {"hidden": 32, "layers": 2, "heads": 2, "intermediate": 64}},
        "eval": {"every": 0, "final_prompts": 512},
    }
    warm = runner.warm(
        {**common, "warmup": {"steps": 250, "batch": 64, "warmup_steps": 10, "lr": 5e-3}, "run": {"threads": 1}}
    )
    job = {**common, "model": warm, "steps": steps, "batch": {"prompts": 16, "group_size": 8}}
    job["optim"] = {"lr": rate, "warmup_steps": 3, "schedule": "constant"}
    plain, *_ = CORRECTIONS
    cases = [("synchronous", 0, CORRECTIONS[plain])]
    cases += [(name, 1, CORRECTIONS[name]) for name in (plain, "decoupled_ppo")]
    cases += [(name, 4, given) for name, given in CORRECTIONS.items()]
    found: dict[tuple[str, int], list[Path]] = {(name, ahead): [] for name, ahead, _ in cases}
    for seed in range(seeds):
        for name, ahead, given in cases:
            run = {"threads": 1, "async_steps": ahead}
            run |= {key: value for key, value in given.items() if key == "proximal"}
            folder = runner.run({**job, "method": given["method"], "seed": seed, "run": run})
            found[name, ahead].append(folder)
        yield [_learning_row(name, ahead, folders) for (name, ahead), folders in found.items()]


def _learning_row(name: str, ahead: int, folders: list[Path]) -> list[str]:
    ends = [[r["eval/pass@1"] for r in records(folder, "eval")] for folder in folders]
    last = [records(folder, "train")[-1] for folder in folders]
    means = [statistics.fmean(r["reward_mean"] for r in records(folder, "train")) for folder in folders]
    stale = statistics.fmean(r.get("staleness_mean", 0.0) for r in last)
    return [
        name,
        str(ahead),
        f"{stale:.1f}",
        f"{statistics.fmean(e[0] for e in ends):.3f}",
        f"{statistics.fmean(e[-1] for e in ends):.3f}",
        " ".join(f"{e[-1]:.3f}" for e in ends),
        f"{statistics.fmean(means):.3f}",
    ]


RACE_HEAD = [
    *("run", "s per step", "sampling", "update", "trainer waits", "sampler idle", "staleness"),
    *("× synchronous, 1 thread", "spread"),
]
LEARNING_HEAD = [
    *("correction", "async_steps", "staleness at the end", "pass@1 before", "after (mean)", "after, seed by seed"),
    "mean reward of all steps",
]


def main(
    rounds: Annotated[int, typer.Option(help="Rounds of the race.")] = 3,
    race_steps: Annotated[int, typer.Option(help="Steps of each run of the race.")] = 30,
    uneven_rounds: Annotated[int, typer.Option(help="Rounds of the race with uneven lengths.")] = 3,
    seeds: Annotated[int, typer.Option(help="Seeds of the learning runs.")] = 3,
    steps: Annotated[int, typer.Option(help="Steps of each learning run.")] = 60,
    rate: Annotated[float, typer.Option(help="Learning rate of the learning runs.")] = 1e-3,
    out: Annotated[Path, typer.Option(help="Where the page is written.")] = Path("docs/bench_overlap.md"),
) -> None:
    """Measure the tables and write them."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as home:
        runner = Runner(Path(home))
        raced = race(runner, rounds, race_steps) if rounds else []
        apart = uneven(runner, uneven_rounds, race_steps) if uneven_rounds else []
        for done, learnt in enumerate(learning(runner, seeds, steps, rate) if seeds else [[]], 1):
            facts = ", ".join(f"{name} {value}" for name, value in machine.describe(PACKAGES).items())
            loads = f"{load:.1f} to {os.getloadavg()[0]:.1f}"
            write_text(out, _page(raced, apart, learnt, facts, loads, rounds, done, steps, rate))


def _page(
    raced: report.Rows,
    apart: report.Rows,
    learnt: report.Rows,
    facts: str,
    load: str,
    rounds: int,
    seeds: int,
    steps: int,
    rate: float,
) -> str:
    found = [
        "# Training while completions are sampled",
        f"Measured by `bench/overlap.py`. {facts}. Load of the machine from the first to the last run: {load} "
        "(processes that want a core; above the number of cores everybody waits).",
    ]
    if raced:
        found += [
            "## Seconds per step",
            f"`addition` by a warmed-up tiny model, 32 prompts of 16 completions, two optimiser steps each, {rounds} "
            "rounds, the second half of each run, medians. `sampling` and `update` are the seconds of the two halves "
            "of a step, wherever they ran; the spread is that of the rounds.",
            report.markdown(RACE_HEAD, raced),
        ]
    if apart:
        found += [
            "## Seconds per step where lengths differ",
            "`addition` by an untrained tiny model, which ends its completions by chance: 4 prompts of 4 completions "
            "of at most 256 tokens, one optimiser step each. `samplers 0`: the trainer samples itself, and what is "
            "unfinished continues in the next step.",
            report.markdown(RACE_HEAD, apart),
        ]
    if learnt:
        found += [
            "## What is learnt from older completions",
            f"`reverse` of four letters, a warmed-up tiny model, {steps} steps of 16 prompts of 8 completions, one "
            f"update each, learning rate {rate:g} throughout, {seeds} seeds, 512 held-out prompts.",
            report.markdown(LEARNING_HEAD, learnt),
        ]
    return "\n\n".join(found) + "\n"


if __name__ == "__main__":
    typer.run(main)
