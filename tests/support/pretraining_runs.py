"""Small runs of methods with a phase before training, and runs cut off at a checkpoint."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

from rich.console import Console


def config(method: Any, **changes: Any) -> dict[str, Any]:
    return {
        "task": {"name": "addition", "digits": 1},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": method,
        "steps": 3,
        "seed": 3,
        "warmup": {"steps": 80, "batch": 32, "lr": 1e-2},
        "batch": {"prompts": 8, "group_size": 6},
        "optim": {"lr": 1e-3},
        "eval": {"prompts": 8, "final_prompts": 8},
        "run": {"threads": 1, "checkpoint_every": 1, "keep": 200},
        "data": {"prompts": 40},
    } | changes


def run(folder: Path, method: Any = "grpo", *, resume: bool = False, **changes: Any) -> Path:
    from grouprl.config.run import parse_config
    from grouprl.training.loop import train

    console = Console(file=io.StringIO(), width=100)
    return train(parse_config(config(method, **changes)), folder=folder, resume=resume, console=console).folder


def records(folder: Path, phase: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timing = ("seconds", "tokens_per_second", "memory_mb")
    return [{k: v for k, v in line.items() if not k.startswith(timing)} for line in lines if line["phase"] == phase]


def cut_at(whole: Path, folder: Path, at: str) -> Path:
    """Copy a finished run and forget everything after checkpoint `at`."""
    shutil.copytree(whole, folder)
    order = {"warmup": 0, "pretraining": 1, "step": 2}
    for path in (folder / "checkpoints").iterdir():
        if (order[path.name.split("-")[0]], path.name) > (order[at.split("-")[0]], at):
            shutil.rmtree(path)
    shutil.rmtree(folder / "model")
    if at.startswith("pretraining"):
        (folder / "before.json").unlink()
    return folder
