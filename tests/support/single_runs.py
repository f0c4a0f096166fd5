"""Small runs of single-turn tasks."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.training.loop import Summary, train


def run_config(**changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "task": {"name": "addition", "digits": 1},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": "grpo",
        "steps": 2,
        "warmup": {"steps": 30, "batch": 32, "lr": 1e-2},
        "batch": {"prompts": 4, "group_size": 4},
        "optim": {"lr": 1e-3},
        "eval": {"every": 1, "prompts": 8, "final_prompts": 8},
        "run": {"threads": 1},
    }
    return config | changes


def launch(folder: Path, **changes: Any) -> Summary:
    return train(parse_config(run_config(**changes)), folder=folder, console=Console(file=io.StringIO(), width=100))


def records(folder: Path, phase: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["phase"] == phase]
