"""Runs of seconds, for tests of what surrounds training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.training.loop import train

TINY = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 64}}
SMALL: dict[str, Any] = {
    "task": {"name": "reverse", "length": 2},
    "model": TINY,
    "steps": 2,
    "sampling": {"max_new_tokens": 8},
    "batch": {"prompts": 2, "group_size": 2},
    "eval": {"every": 0, "prompts": 4, "final_prompts": 4},
    "run": {"threads": 1},
}


def quiet() -> Console:
    """A console that nobody reads."""
    return Console(quiet=True)


def trained_steps(config: Mapping[str, object], folder: Path) -> list[dict[str, Any]]:
    """Train in `folder`, and return the records of steps that trained on something."""
    made = train(parse_config(config), folder=folder).folder
    records = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record.get("phase") == "train" and "loss" in record]
