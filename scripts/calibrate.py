"""Hold the arithmetic of `grouprl plan --on` against runs on this machine, and record how far it is off.

The machine is probed for products and for reading memory; two shares, of a rollout and of an update, are fitted on the
first model and predict the others.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from grouprl.config.run import load_config
from grouprl.plan.cluster.hardware import Accelerator, Cluster
from grouprl.plan.cluster.roofline import Efficiency, sampling, training
from grouprl.plan.cluster.workload import Workload, workload
from grouprl.plan.plan import plan
from grouprl.storage.run_folder import RunFolder, write_json
from grouprl.training.loop import train

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "src" / "grouprl" / "plan" / "cluster" / "calibration.json"
SIZES = {"6 layers of 256": (6, 256), "8 layers of 384": (8, 384), "4 layers of 768": (4, 768)}
STEPS = 4
IDEAL = Efficiency(1, 1, 1, 1, 1, 1, 0, 0)


def noise(completion: str, **columns: Any) -> float:
    """Return a reward that differs within every group, so that every row is trained on."""
    return zlib.crc32(completion.encode()) / 2**32


def best_of(times: int, work: Callable[[], Any]) -> float:
    """Return the shortest of so many durations, in seconds."""
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found)


def probe() -> Accelerator:
    """Return this machine's speeds in float32 on one thread."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    memory = torch.zeros(64 * 2**20)
    flops = 2 * 1024**3 / best_of(8, lambda: left @ right)
    bandwidth = memory.numel() * 4 / best_of(8, memory.sum)
    return Accelerator("CPU", 16e9, bandwidth, flops, 1e12, 1e12, "probed")


def measured(layers: int, hidden: int, folder: Path) -> tuple[Workload, float, float]:
    """Train a few steps; return what a step computes, and the median seconds of a rollout and of an update."""
    changes = [
        *(
            f"model.tiny.layers={layers}",
            f"model.tiny.hidden={hidden}",
            "model.tiny.heads=8",
            f"model.tiny.intermediate={11 * hidden // 4}",
        ),
        *(f"steps={STEPS}", "warmup.steps=0", "eval.every=0", "eval.prompts=1", "eval.final_prompts=1"),
        *("batch.prompts=16", "batch.group_size=8", f"run.folder={folder}", "run.threads=1"),
        *(f"reward.function={__file__}:noise", "reward.workers=0"),
    ]
    config = load_config("addition", changes)
    work = replace(workload(plan(config)), weight_bytes=4, recomputed=False, scorings=0)
    if train(config, console=Console(file=StringIO())).interrupted:
        raise KeyboardInterrupt
    lines = [line for line in RunFolder(folder).read_metrics() if line["phase"] == "train"][1:]
    mean = median(line["length_mean"] for line in lines)
    seconds = (median(line[f"seconds_{name}"] for line in lines) for name in ("rollout", "update"))
    return (replace(work, completion_tokens=max(mean, 1)), *seconds)


def main(record: Annotated[Path, typer.Option(help="Where the result is written.")] = RECORD) -> None:
    """Measure, and write what came of it."""
    torch.set_num_threads(1)
    cases: dict[str, dict[str, float]] = {}
    for name, (layers, hidden) in SIZES.items():
        cluster = Cluster(1, 1, probe())
        with tempfile.TemporaryDirectory() as place:
            work, rollout, update = measured(layers, hidden, Path(place) / "run")
        sampled, learned = sampling(work, cluster, 1, 1, IDEAL), training(work, cluster, 1, 1, IDEAL)
        assert sampled is not None
        assert learned is not None
        cases[name] = {"rollout": sampled.seconds / rollout, "update": learned.seconds / update}
        typer.echo(f"{name}: {json.dumps(cases[name])} at {cluster.accelerator.flops / 1e9:.0f} GFLOP/s")
    first, *others = cases.values()
    errors = {
        f"{part}_error": max(abs(other[part] / first[part] - 1) for other in others) for part in ("rollout", "update")
    }
    found = {"machine": platform.processor() or platform.machine(), "cases": list(cases), "shares": cases, **errors}
    write_json(record, found)
    typer.echo(json.dumps(errors))


if __name__ == "__main__":
    typer.run(main)
