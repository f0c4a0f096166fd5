"""The leading process's own cost per step as environments, samplers and ranks grow, on one machine.

Its processor time is counted, not the time that passes: other processes share the cores. A setting is run with few and
with many steps, so that what a run costs once drops out. `python scripts/controller_cost.py` writes the record and its
tables in docs/scaling.md; actors are only counted where Ray can be imported (`.venv-ray/bin/python` after `make ray`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from page_record import fill, keep

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "docs" / "controller_cost.json", ROOT / "docs" / "scaling.md"
STUB = Path(__file__).with_name("controller_stub.py")
FEW, MANY = 4, 84
COUNTS = {
    "environments": (1, 4, 16, 64),
    "samplers": (1, 2, 4, 8, 16),
    "ranks": (1, 2, 4, 8, 16, 32),
    "actors": (1, 2, 4, 8, 16),
}
WORDS = {
    "environments": "worker processes of environments, 64 episodes of 3 turns a step",
    "samplers": "processes that sample ahead (`run.samplers`), 64 completions a step",
    "ranks": "processes that share the model (`grouprl launch`), 64 completions a step",
    "actors": "samplers that Ray places on two logical nodes (`cluster.samplers`), 64 completions a step",
}


def config(kind: str, count: int, steps: int) -> dict[str, Any]:
    """Return a run of a model that costs next to nothing, with `count` processes of a kind.

    Actors are placed by the Ray of RAY_ADDRESS.
    """
    task: Any = f"{STUB}:IdleTask" if kind == "environments" else {"name": "reverse", "length": 2}
    run = {"threads": 1, "checkpoint_every": 1000, "rollouts_every": 0, "check_model": False}
    if kind == "samplers":
        run |= {"async_steps": count, "samplers": count}
    return {
        "task": task,
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "warmup": {"steps": 0},
        "steps": steps,
        "batch": {"prompts": 16, "group_size": 4},
        "optim": {"lr": 1e-6},
        "eval": {"every": 0, "final_prompts": 1},
        "environment": {"workers": count} if kind == "environments" else {},
        "plugins": [str(STUB)],
        "cluster": {"ray": "auto", "samplers": count, "rewards": 0, "environments": 0, "cpus": 0.1}
        if kind == "actors"
        else {},
        "run": run,
    }


def clocks(kind: str, count: int, steps: int) -> dict[int, list[float]]:
    """Run once; return the processor seconds of the processes that ended by themselves, by rank."""
    with tempfile.TemporaryDirectory() as home:
        path, folder = Path(home) / "run.yaml", Path(home) / "clocks"
        folder.mkdir()
        path.write_text(yaml.safe_dump(config(kind, count, steps)))
        start = ["launch", "-n", str(count)] if kind == "ranks" and count > 1 else []
        words = [sys.executable, "-m", "grouprl", *start, "train", str(path), "--folder", f"{home}/run", "-q"]
        surroundings = os.environ | {"CLOCKS": str(folder), "OMP_NUM_THREADS": "1"}
        begun = subprocess.Popen(words, env=surroundings, stdout=subprocess.DEVNULL)
        if begun.wait() != 0:
            raise SystemExit(f"{kind} with {count} processes ended with {begun.returncode}")
        found: dict[int, list[float]] = {}
        for file in folder.iterdir():
            if kind == "ranks" or file.stem == str(begun.pid):
                clock = json.loads(file.read_text())
                found.setdefault(clock["rank"], []).append(clock["seconds"])
        return found


def per_step(kind: str, count: int) -> dict[str, float]:
    """Return the seconds per step of the leading process, and the mean of the other ranks'."""
    few, many = clocks(kind, count, FEW), clocks(kind, count, MANY)
    each = {rank: (max(many[rank]) - max(few[rank])) / (MANY - FEW) for rank in many}
    others = [seconds for rank, seconds in each.items() if rank]
    return {"leading": each[0], **({"others": statistics.fmean(others)} if others else {})}


def table(rows: list[dict[str, Any]]) -> str:
    """Return a row per kind and number of processes: the least of the rounds, and their range.

    The least, as other processes on the machine only ever add to what a step takes.
    """
    lines = [
        "| what grows | number | leading process (ms a step) | rounds | another rank |",
        "| --- | ---: | ---: | --- | ---: |",
    ]
    for kind, count in dict.fromkeys((row["kind"], row["count"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["count"]) == (kind, count)]
        leading = [1000 * row["leading"] for row in own]
        others = [1000 * row["others"] for row in own if "others" in row]
        beside = f"{min(others):.0f}" if others else ""
        spread = f"{min(leading):.0f} to {max(leading):.0f}"
        lines.append(f"| {WORDS[kind]} | {count} | {min(leading):.0f} | {spread} | {beside} |")
    return "\n".join(lines)


@contextlib.contextmanager
def placing(kind: str) -> Iterator[None]:
    """Have a Ray of a head and two logical nodes where actors are placed, named in RAY_ADDRESS."""
    if kind != "actors":
        yield
        return
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from ray_nodes import three_nodes

    with three_nodes(8) as nodes:
        os.environ["RAY_ADDRESS"] = nodes.address
        yield
        del os.environ["RAY_ADDRESS"]


def measured(kinds: list[str], rounds: int) -> Iterator[dict[str, Any]]:
    """Measure every setting in each round, so that whatever else the machine does disturbs all of them."""
    for number in range(rounds):
        for kind in kinds:
            with placing(kind):
                for count in COUNTS[kind]:
                    yield {"kind": kind, "count": count, "round": number, **per_step(kind, count)}


def main(
    rounds: Annotated[int, typer.Option(help="How often each is measured; 0 only writes the page.")] = 3,
    only: Annotated[str, typer.Option(help="One kind of process; default: all that can be started.")] = "",
) -> None:
    """Measure, and write the record and the page."""
    usual = [kind for kind in COUNTS if kind != "actors" or importlib.util.find_spec("ray")]
    for row in measured([only] if only else usual, rounds):
        keep(RECORD, row, ("kind", "count", "round"))
    rows = json.loads(RECORD.read_text(encoding="utf-8"))
    order = {kind: place for place, kind in enumerate(COUNTS)}
    fill(PAGE, {"controller": table(sorted(rows, key=lambda row: (order[row["kind"]], row["count"], row["round"])))})


if __name__ == "__main__":
    typer.run(main)
