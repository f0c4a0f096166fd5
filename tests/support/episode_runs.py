"""Small runs of tasks that are acted in over turns."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

import toy_envs
from grouprl.config.run import parse_config
from grouprl.training.loop import train


def run_config(**changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "task": f"{toy_envs.__file__}:AskTask",
        "model": {"name": "tiny", "tiny": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": "grpo",
        "steps": 2,
        "warmup": {"steps": 0},
        "batch": {"prompts": 8, "group_size": 8},
        "optim": {"lr": 1e-2, "warmup_steps": 2},
        "eval": {"prompts": 8, "final_prompts": 64, "samples": 4},
        "run": {"threads": 1},
        "environment": {"workers": 0},
    }
    return config | changes


def launch(folder: Path, **changes: Any) -> Path:
    console = Console(file=io.StringIO(), width=100)
    return train(parse_config(run_config(**changes)), folder=folder, console=console).folder


def records(folder: Path, phase: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["phase"] == phase]


def resumed_is_the_same(whole: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    again = Path(shutil.copytree(whole, tmp_path / "again"))
    newest = max((again / "checkpoints").iterdir(), key=lambda path: path.name)
    shutil.rmtree(newest)
    console = Console(file=io.StringIO(), width=100)
    train(parse_config(run_config(**changes)), folder=again, resume=True, console=console)
    for step in (3, 4):
        name = f"rollouts/step-{step:06d}.parquet"
        assert pq.read_table(again / name).equals(pq.read_table(whole / name))
    lines = [json.loads((f / "metrics.jsonl").read_text().splitlines()[-1]) for f in (whole, again)]
    assert lines[0]["eval/pass@1"] == lines[1]["eval/pass@1"]
