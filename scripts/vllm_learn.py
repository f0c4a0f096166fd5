"""Runs that learn with servers of vLLM, recorded in docs/vllm.md and docs/vllm_runs.json: tiny models from scratch, one
of them on episodes with a tool, and SmolLM2-135M-Instruct in full, by adapters that the server loads, and with tools.

    python scripts/vllm_learn.py .venv-vllm/bin/vllm            what is not recorded yet
    python scripts/vllm_learn.py .venv-vllm/bin/vllm calculator  one of them, again

Each run starts its own server, watches it and ends it. It is recorded as it ends.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from grouprl.config.run import load_config
from grouprl.rollout.servers.starting import free_port
from grouprl.storage.run_folder import RunFolder, write_json, write_text
from grouprl.training.loop import train
from real import RECIPES, RUNS, fetch

Record = dict[str, Any]
ROOT = Path(__file__).parents[1]
DOCS, HERE = ROOT / "docs", ROOT / "runs" / "vllm"
STORE = DOCS / "vllm_runs.json"
BEGIN, END = "<!-- recorded -->", "<!-- /recorded -->"
ROOM = ["--max-model-len", "1024", "--max-num-batched-tokens", "1024"]
"""The model knows 8,192 positions; these prompts are short, and a server tries its longest as it starts."""
COUNTS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
"""What a server counts of prompts: tokens, and those of them that it had read before."""


@dataclass(frozen=True)
class Trial:
    """One run: what it is called on the page, its recipe, and what is changed there."""

    says: str
    recipe: str
    changes: tuple[str, ...]
    pretrained: bool = True
    vllm: Record = field(default_factory=dict)
    """Settings of the servers; with `engine: local` among them there are none."""
    seed: int = 0
    warmed: bool = False
    """Whether it begins from the model after its recipe's own warm-up, which is made once for all seeds."""


SMALL = ("model.tiny.heads=2", "batch={prompts: 16, group_size: 8, minibatches: 2}", "steps=40", "eval.every=10")
SHORT = (
    "steps=10",
    "batch={prompts: 8, group_size: 8, minibatches: 2}",
    "eval={every: 5, prompts: 24, final_prompts: 48}",
)
REVERSE = (
    "task={name: reverse, length: 2}",
    "model.tiny={heads: 2, layers: 2}",
    "warmup={steps: 120, batch: 32}",
    "method=grpo",
    "optim={lr: 1e-3}",
    "batch={prompts: 8, group_size: 8, minibatches: 2}",
    "eval={every: 15, prompts: 64, final_prompts: 64}",
    "steps=30",
)
ERRANDS = ("warmup.steps=0", "steps=8", "eval={every: 8, prompts: 48, final_prompts: 48}", "environment.workers=12")


def errands(seed: int) -> Trial:
    """Return the trial of two commands a prompt, of a seed."""
    says = f"errands (two commands a prompt), 135M, all weights, 8 steps, seed {seed}"
    return Trial(says, str(RECIPES / "errands.yaml"), ERRANDS, seed=seed, warmed=True)


BEHIND_ADAPTERS = ("warmup.steps=0", "model.lora=null", "optim.lr=1e-5", "sampling.temperature=0.4")
"""What follows the recipe's own warm-up of adapters, whose loss is taken at the recipe's temperature."""


def mending(seed: int) -> Trial:
    """Return the trial of bugs in one function, of a seed."""
    says = f"repositories (a bug in one function), 135M, all weights, 8 steps, seed {seed}"
    return Trial(says, str(RECIPES / "repositories.yaml"), BEHIND_ADAPTERS, seed=seed, warmed=True)


TRIALS = {
    "reverse": Trial("two letters reversed, 0.1M from scratch, rate 1e-3", "addition", REVERSE, False),
    "reverse-slow": Trial(
        "the same at a rate of 4e-4, 16 × 8 completions a step",
        "addition",
        (*REVERSE, "optim.lr=4e-4", "batch.prompts=16"),
        False,
    ),
    "sums": Trial("sums, 135M, all weights", str(RECIPES / "sums.yaml"), SHORT),
    "calculator": Trial("calculator (a tool, several turns), 0.1M from scratch", "calculator", SMALL, False),
    "calculator-local": Trial("the same with the local engine", "calculator", SMALL, False, {"engine": "local"}),
    "sums-lora": Trial(
        "sums, 135M, adapters of rank 16 that the server loads, trainer in mixed precision",
        str(RECIPES / "sums.yaml"),
        (*SHORT, "model.lora={r: 16}", "model.precision=mixed", "optim.lr=1e-4"),
        True,
        {"adapters": "loaded"},
    ),
    "lookups": Trial("lookups (two tools, turns), 135M", str(RECIPES / "lookups.yaml"), ("steps=4", "eval.every=2")),
    **{f"errands-{seed}": errands(seed) for seed in range(3)},
    **{f"repositories-{seed}": mending(seed) for seed in range(3)},
    "pages-0": Trial(
        "pages (eight kinds of web pages), 135M, all weights, 8 steps, seed 0",
        str(RECIPES / "pages.yaml"),
        BEHIND_ADAPTERS,
        warmed=True,
    ),
}


def server(program: str, trial: Trial, port: int) -> str:
    """Return the settings of a run's server."""
    args = ROOM if trial.pretrained else []
    return json.dumps({"command": [program], "port": port, "args": args, **trial.vllm})


@contextmanager
def counted(port: int) -> Iterator[dict[str, float]]:
    """Read a server's counts every few seconds; the last ones stay."""
    found: dict[str, float] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(3.0):
            with suppress(OSError):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                    lines = answer.read().decode().splitlines()
                found.update({n: float(each.split()[-1]) for n in COUNTS for each in lines if each.startswith(n)})

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()


def run(name: str, program: str) -> Record:
    """Train, and return what came of it."""
    trial, port, folder = TRIALS[name], free_port(), HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    changes = [*trial.changes, f"seed={trial.seed}"]
    if trial.vllm.get("engine") != "local":
        changes += ["sampling.engine=vllm", f"sampling.vllm={server(program, trial, port)}"]
    source = "from scratch"
    if trial.pretrained:
        model, source = fetch(RUNS / "model")
        changes.append(f"model.name={warmed(trial.recipe, model) if trial.warmed else model}")
    begun = time.monotonic()
    with counted(port) as counts:
        found = train(load_config(trial.recipe, changes), folder=folder, console=Console(file=io.StringIO()))
    if found.interrupted:
        raise typer.Exit(130)
    record = read(folder, trial, source, counts, time.monotonic() - begun)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return record


def warmed(recipe: str, model: str) -> str:
    """Return the folder of a model after a recipe's warm-up by the local engine, which is done once."""
    folder = HERE / f"{Path(recipe).stem}-warm"
    if not (folder / "model").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        changes = ["steps=0", "seed=0", "eval={prompts: 4, final_prompts: 4}", f"model.name={model}"]
        if train(load_config(recipe, changes), folder=folder, console=Console(file=io.StringIO())).interrupted:
            raise typer.Exit(130)
    return str(folder / "model")


def read(folder: Path, trial: Trial, source: str, counts: dict[str, float], seconds: float) -> Record:
    """Return the record of a finished run."""
    lines = RunFolder(folder).read_metrics()
    steps = [line for line in lines if line["phase"] == "train"]
    held_out = [line for line in lines if line["phase"] == "eval"]
    found: Record = {
        "says": trial.says,
        "model": source,
        "changes": list(trial.changes),
        "held_out": [{"step": line["step"], **_measures(line)} for line in held_out],
        "load": os.getloadavg()[0],
        "seconds": round(seconds),
    }
    for name in ("reward_mean", "logp_gap_mean", "logp_gap_max", "canary_gap", "turns_mean", "length_mean"):
        found[name] = [line[name] for line in steps if name in line]
    for name in ("seconds_rollout", "seconds_update", "seconds_sync"):
        found[name] = [round(line[name], 2) for line in steps if name in line]
    if counts.get(COUNTS[0]):
        found["prefix_cached"] = counts[COUNTS[1]] / counts[COUNTS[0]]
    return found


def _measures(line: Record) -> Record:
    """Return the numbers of an evaluation by their names without "eval/"."""
    kept = {k: x for k, x in line.items() if k.startswith("eval/") and isinstance(x, int | float)}
    return {k.removeprefix("eval/"): x for k, x in kept.items()}


def table(records: dict[str, Record]) -> str:
    """Return a row per run."""
    head = (
        "| run | held out, greedy | held out, sampled | reward | log-prob gap, mean (largest) | canary | seconds a "
        "step: sampling, update, exchange | read before |\n" + "| --- " * 8 + "|\n"
    )
    return head + "".join(_row(records[name]) for name in TRIALS if name in records)


def _row(record: Record) -> str:
    first, last = record["held_out"][0], record["held_out"][-1]
    cells = [record["says"]]
    cells += [f"{first[kind]:.2f} → {last[kind]:.2f}{_gain(last, kind)}" for kind in ("greedy", "pass@1")]
    cells.append(f"{record['reward_mean'][0]:.2f} → {statistics.fmean(record['reward_mean'][-3:]):.2f}")
    gaps = record["logp_gap_mean"], record["logp_gap_max"]
    cells.append(f"{statistics.fmean(gaps[0]):.1e} ({max(gaps[1]):.1e})" if gaps[0] else "–")
    cells.append(f"{max(record['canary_gap']):.1e}" if record["canary_gap"] else "–")
    kinds = ("seconds_rollout", "seconds_update", "seconds_sync")
    cells.append(", ".join(f"{statistics.median(record[k]):.1f}" if record[k] else "–" for k in kinds))
    cells.append(f"{record['prefix_cached']:.0%}" if "prefix_cached" in record else "–")
    return f"| {' | '.join(cells)} |\n"


def _gain(last: Record, kind: str) -> str:
    """Return the paired gain with its interval, where it is recorded."""
    found = [last.get(f"{kind}_gain{end}") for end in ("", "_low", "_high")]
    return "" if None in found else " ({:+.2f} [{:+.2f}, {:+.2f}])".format(*found)


def publish(records: dict[str, Record]) -> None:
    """Write the numbers, and the table between its marks."""
    write_json(STORE, records)
    page = DOCS / "vllm.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    write_text(page, f"{before}{BEGIN}\n{table(records)}{END}{rest.partition(END)[2]}")


def main(
    program: Annotated[str, typer.Argument(help="The program vllm.")],
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(TRIALS)}; none: what is not recorded.")
    ] = None,
) -> None:
    """Run and record."""
    for name in names or [each for each in TRIALS if each not in recorded()]:
        record = run(name, program)
        publish({**recorded(), name: record})  # another call may have recorded another run meanwhile
        typer.echo(_row(record), nl=False)


def recorded() -> dict[str, Record]:
    """Return what is recorded."""
    found: dict[str, Record] = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    return found


if __name__ == "__main__":
    typer.run(main)
