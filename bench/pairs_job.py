"""The measured jobs on stored completions: texts, sizes and settings of this library."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import SEED

KINDS = ("dpo", "kto", "reward")
ROWS = 16
"""Completions of a step: eight pairs, or sixteen labels."""
LEARNING_RATE, BETA = 1e-5, 0.1
NOUNS = ("house", "river", "stone", "field", "cloud", "light", "paper", "water", "bread", "glass", "music", "night")


@dataclass(frozen=True)
class Shape:
    """How many words a prompt and an answer have, at least and at most."""

    says: str
    prompt: tuple[int, int]
    answer: tuple[int, int]


SHAPES = {
    "dialogue": Shape("long prompts, short answers", (60, 180), (10, 60)),
    "instruction": Shape("short prompts, long answers", (8, 30), (40, 160)),
}


def write_rows(file: Path, kind: str, shape: Shape, steps: int, per_word: int) -> None:
    """Write the rows that `steps` steps need, and beside them one step's rows that are held out.

    `per_word` divides the counts of words where a letter is a token.
    """
    a_step, rng, seen = ROWS if kind == "kto" else ROWS // 2, random.Random(SEED), set[str]()
    for name, count in ((file, steps * a_step), (held_out(file), a_step)):
        lines = _rows(kind, shape, count, per_word, rng, seen)
        name.write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")


def held_out(file: Path) -> Path:
    """Return the file beside `file` with the rows that are not trained on."""
    return file.with_name("held_out.jsonl")


def _rows(
    kind: str, shape: Shape, count: int, per_word: int, rng: random.Random, seen: set[str]
) -> Iterator[dict[str, Any]]:
    def words(bounds: tuple[int, int]) -> str:
        return " ".join(rng.choice(NOUNS) for _ in range(rng.randint(*bounds) // per_word or 1))

    for number in range(count):
        prompt, better, worse = words(shape.prompt), " " + words(shape.answer), " " + words(shape.answer)
        while prompt in seen:  # a prompt that is held out is not trained on
            prompt = words(shape.prompt)
        seen.add(prompt)
        if kind == "kto":
            yield {"prompt": prompt, "completion": better, "label": number % 2 == 0}
        else:
            yield {"prompt": prompt, "chosen": better, "rejected": worse}


def task(rows: str) -> dict[str, str]:
    """The task of a file of rows."""
    return {"name": "pairs", "path": rows, "eval": str(held_out(Path(rows)))}


def config(kind: str, model: str, rows: str, steps: int, precision: str) -> dict[str, Any]:
    """The run's configuration for this library: nothing but training (one tiny evaluation at either end)."""
    group = 1 if kind == "kto" else 2
    method = {"reward": {"name": "bradley_terry"}, "dpo": {"name": "dpo", "beta": BETA}}
    return {
        "task": task(rows),
        "model": {"name": model, "precision": precision, "dtype": "float32"},
        "method": method.get(kind, {"name": "kto@trl", "beta": BETA}),
        "steps": steps,
        "seed": SEED,
        "batch": {"prompts": ROWS // group, "group_size": group},
        "optim": {"lr": LEARNING_RATE, "schedule": "constant", "betas": [0.9, 0.95], "weight_decay": 0.0},
        "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
        "run": {"rollouts_every": 0, "checkpoint_every": 10**6, "threads": 1},
    }
