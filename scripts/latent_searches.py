"""Search the latent vectors of trained COMPASS policies for each instance, beside as many drawn ones (docs/routing.md).

Run `python scripts/latent_searches.py runs [SEED …]` for docs/latent_searches.json, `… page` for the table.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from finished import finished
from grouprl.evaluation.latent_search import costs_of, drawn, search
from grouprl.policy import Build, Pointer
from grouprl.policy.vectors.module_policy import MODEL_FILE
from grouprl.tasks import load_task
from page_record import fill, keep
from populations import DOCS, PAGE, POLICY, SEEDS, settings, task_of

RECORD = DOCS / "latent_searches.json"
CITIES, INSTANCES, BUDGET, STEPS = 12, 64, 64, 80
"""Cities of the instances, which are larger than those of training (8), their number, tours of each, steps trained."""
WAYS = {
    "COMPASS, searched": ("compass", lambda *given: search(*given, budget=BUDGET).cost_n),
    "COMPASS, drawn": ("compass", lambda *given: drawn(*given, budget=BUDGET).cost_n),
    "POMO, sampled": ("POMO", lambda *given: costs_of(*given, np.zeros((BUDGET, 0)), seed=0)),
}
"""By name: the method that trained the policy, and what gives the costs of an instance's tours, in order."""


def policy_of(method: str, seed: int, folder: Path) -> Pointer:
    """Return a policy that was trained as docs/populations.json says; train it if it is not there yet."""
    if not (folder / "summary.json").exists():
        finished(settings(method, seed, STEPS), folder)
    task = load_task(task_of(method))
    policy = Pointer(Build(spaces=task.spaces, task=task, seed=seed), **POLICY)
    policy.load_trainable_state(load_file(folder / "model" / MODEL_FILE))
    return policy


def gaps(method: str, policy: Pointer, costs: Callable[..., Any]) -> np.ndarray:
    """Return the gap in percent of each tour of each held-out instance, [INSTANCES, BUDGET]."""
    task = load_task({**task_of(method), "count": CITIES})
    found = []
    for index in range(INSTANCES):
        example = task.example("eval", index)
        best = task.instance(example)["best"][0]
        found.append(100 * (np.asarray(costs(task, policy, example)) / best - 1))
    return np.array(found)


def row_of(way: str, seed: int, kept: Path) -> dict[str, object]:
    """Return the mean gap of the best of a quarter of the tours, and of all, with its 95 % interval."""
    begun, (method, costs) = time.process_time(), WAYS[way]
    gap_nk = gaps(method, policy_of(method, seed, kept / f"{method}-{seed}-{STEPS}"), costs)
    best_n = gap_nk.min(1)
    half = 1.96 * best_n.std(ddof=1) / INSTANCES**0.5
    ends = [round(float(x), 2) for x in (best_n.mean(), best_n.mean() - half, best_n.mean() + half)]
    sixteen, late = gap_nk[:, : BUDGET // 4], gap_nk[:, -BUDGET // 4 :]
    means = {"first": round(float(sixteen.mean()), 2), "last": round(float(late.mean()), 2)}
    quarter = round(float(sixteen.min(1).mean()), 2)
    return {
        "way": way,
        "seed": seed,
        **means,
        "quarter": quarter,
        "best": ends,
        "seconds": round(time.process_time() - begun),
    }


def record(seeds: list[int], kept: Path) -> None:
    """Run all ways for each seed, and put each into the record as it ends."""
    for seed in seeds:
        for way in WAYS:
            keep(RECORD, row_of(way, seed, kept), ("way", "seed"))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the record as a table."""
    lines = [
        "| tours | seed | first 16 | last 16 | best of 16 | best of 64 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: (list(WAYS).index(row["way"]), row["seed"])):
        mid, low, high = row["best"]
        means = f"{row['first']:.1f} | {row['last']:.1f} | {row['quarter']:.1f}"
        lines.append(f"| {row['way']} | {row['seed']} | {means} | {mid:.2f} [{low:.2f}, {high:.2f}] |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(tempfile.gettempdir()) / "population_runs"
    if sys.argv[1] == "runs":
        record([int(word) for word in sys.argv[2:]] or list(SEEDS), where)
    else:
        fill(PAGE, {"latent searches": table(json.loads(RECORD.read_text()))})
