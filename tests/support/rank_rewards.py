"""Runs of reward models on several ranks: their configurations, and what they keep of their rows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

import rank_runs

LIKES = {"completion": "response", "ratings": ["likes"]}
METHODS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "bradley_terry": ("bradley_terry", {}, 2),
    "reward_regression": ("reward_regression", LIKES, 1),
    "attribute_regression": (
        {"name": "attribute_regression", "attributes": ["likes", "size"]},
        {"completion": "response", "ratings": ["likes", "size"]},
        1,
    ),
    "process_reward": ("process_reward", {"separator": ";"}, 2),
    "gpm": ({"name": "gpm", "blocks": 2, "tau": 0.5}, {}, 2),
}
"""By name: the method, the settings of its rows, and the rows of a prompt."""


WAYS: dict[str, dict[str, Any]] = {
    "lora": {"lora": {"r": 2, "target_modules": ["c_attn"]}},
    "offload": {"offload": True},
    "context": {"context_parallel": 2},
    "tensor": {"tensor_parallel": 2},
}
"""Settings of a model, by what is added to the name of a case."""
CASES = (*METHODS, "bradley_terry+lora", "reward_regression+lora+offload")
"""Cases that any number of ranks can run."""


def write_rows(folder: Path, longest: int = 9) -> None:
    """Write pairs, ratings and labels of steps of the same few letters; which is read is the task's matter."""
    rng = random.Random(0)
    texts = ["".join(rng.choice("ab") for _ in range(rng.randint(1, longest))) for _ in range(60)]
    rows = [
        {"prompt": f"{n}:", "chosen": text + "a", "rejected": text + "b", "response": text}
        | {"likes": text.count("a"), "size": len(text)}
        for n, text in enumerate(texts)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    steps = [{"prompt": row["prompt"], "completions": ["a", "b"], "labels": [True, False]} for row in rows]
    (folder / "steps.jsonl").write_text("\n".join(map(json.dumps, steps)))


def write_config(folder: Path, name: str, /, **more: Any) -> Path:
    """Write the configuration of a run of four steps of a reward model, and its rows."""
    write_rows(folder)
    method, rows, each = METHODS[name]
    task = f"step_labels:{folder / 'steps.jsonl'}" if name == "process_reward" else f"pairs:{folder / 'rows.jsonl'}"
    model = {"name": str(folder / "gpt2"), "dtype": "float64", **more.pop("model", {})}
    return rank_runs.write_config(
        folder,
        name,
        task={"name": task, **rows} if rows else task,
        method=method,
        model=model,
        reward=None,
        warmup={"steps": 0},
        batch={"prompts": 6, "group_size": each, "minibatches": 2, "tokens_per_microbatch": 48},
        run={"checkpoint_every": 2, "rank_timeout": 60, "rollouts_every": 1, **more.pop("run", {})},
        **more,
    )


def write_case(folder: Path, case: str, **more: Any) -> Path:
    """Write the configuration of a method with ways added to its name."""
    name, *ways = case.split("+")
    model = {key: value for way in ways for key, value in WAYS[way].items()}
    if "tensor" in ways:
        model["name"] = str(rank_runs.save_cut_model(folder))
    return write_config(folder, name, model=model, **more)


def of_one_process(config: Path) -> Path:
    """Write the same configuration without what needs several processes."""
    settings = yaml.safe_load(config.read_text())
    settings["model"] = {k: x for k, x in settings["model"].items() if "parallel" not in k and k != "offload"}
    own = config.with_name(f"alone-{config.name}")
    own.write_text(yaml.safe_dump(settings))
    return own


def stored(run: Path) -> list[dict[str, Any]]:
    """All rows that a run has kept, with their scores."""
    return [row for path in sorted((run / "rollouts").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def scores(run: Path) -> list[float | None]:
    """The scores of all rows that a run has kept, by their names."""
    return [x for row in stored(run) for x in (row["score"], *(value for _, value in row["scores"] or ()))]


def apart(one: Path, other: Path) -> dict[str, float]:
    """How far apart two runs ended, kept scores included."""
    mine, theirs = scores(one), scores(other)
    assert [x is None for x in mine] == [x is None for x in theirs]
    gaps = [abs(a - b) for a, b in zip(mine, theirs, strict=True) if a is not None and b is not None]
    assert gaps
    return rank_runs.apart(one, other) | {"scores": max(gaps)}
