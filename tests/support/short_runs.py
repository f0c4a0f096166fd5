"""Runs of seconds, for tests of what surrounds training."""

from __future__ import annotations

from typing import Any

from rich.console import Console

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
