"""Train flow networks on a hypergrid and record how far what they learnt is from the exact distribution.

Run `python scripts/flows.py [METHOD …]`, which adds to docs/flows.json what it lacks.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from finished import finished
from grouprl.envs.construction.hypergrid import HyperGrid, reward
from grouprl.policy import Build, Mlp
from grouprl.policy.vectors.array_distributions import masked
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.policy.vectors.module_policy import MODEL_FILE

RECORD = Path(__file__).parent.parent / "docs" / "flows.json"
SIDE = 8
WORLD = "env:grouprl.envs.construction.hypergrid:HyperGrid"
METHODS = ("tb", "db", "subtb", "vargrad", "rloo")
"""Flow networks, and beside them what seeks the highest reward."""
RATES = (1e-2,)
SEEDS = (0, 1, 2)


def settings(method: str, lr: float, seed: int) -> dict[str, object]:
    """Return the configuration of a run."""
    return {
        "task": {"name": WORLD, "config": {"side": SIDE}, "turns": 2 * SIDE},
        "model": {"name": "mlp", "settings": {"hidden": [64, 64]}},
        "method": method,
        "steps": 100,
        "batch": {"prompts": 2, "group_size": 16},
        "optim": {"lr": lr, "schedule": "constant"},
        "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
        "run": {"threads": 1},
        "seed": seed,
    }


def exact() -> np.ndarray:
    """Return [H,H] R/Z."""
    found = np.array([[reward((i, j), SIDE) for j in range(SIDE)] for i in range(SIDE)])
    return found / found.sum()


@torch.no_grad()
def learnt(policy: Mlp) -> np.ndarray:
    """Return [H,H] the chance of stopping in each cell, by adding up the chances of all ways there."""
    cells = list(itertools.product(range(SIDE), repeat=2))
    legal_na = []
    for cell in cells:
        world = HyperGrid(SIDE)
        world.cell = list(cell)
        legal_na.append(world.legal())
    seen = Seen(torch.tensor(cells), {}, torch.arange(len(cells)), torch.tensor(np.array(legal_na)))
    chance = masked(policy.distribution(seen, 1.0), seen.legal_na).probs.double().numpy().reshape(SIDE, SIDE, 3)
    there = np.zeros((SIDE, SIDE))
    there[0, 0] = 1.0
    for i, j in cells:  # in an order in which what leads to a cell comes before it
        there[i, j] += (there[i - 1, j] * chance[i - 1, j, 0] if i else 0.0) + (
            there[i, j - 1] * chance[i, j - 1, 1] if j else 0.0
        )
    return there * chance[..., 2]


def run(method: str, lr: float, seed: int) -> dict[str, object]:
    """Train, and return the L1 distance Σ|p - R/Z| before and after."""
    spaces = HyperGrid(SIDE).spaces
    fresh, trained = (Mlp(Build(spaces=spaces, seed=seed)) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        finished(settings(method, lr, seed), Path(folder) / "run")
        weights = load_file(Path(folder) / "run" / "model" / MODEL_FILE)
        seconds = json.loads((Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()[-1])["seconds"]
    trained.load_trainable_state({name: x for name, x in weights.items() if not name.startswith("value_head.")})
    away = [round(float(np.abs(learnt(policy) - exact()).sum()), 4) for policy in (fresh, trained)]
    return {"method": method, "lr": lr, "seed": seed, "l1": away, "seconds": round(seconds)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, name, rate in itertools.product(SEEDS, sys.argv[1:] or METHODS, RATES):
        rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
        if any((r["method"], r["lr"], r["seed"]) == (name, rate, number) for r in rows):
            continue
        row = run(name, rate, number)
        RECORD.write_text("[\n" + ",\n".join(json.dumps(r) for r in [*rows, row]) + "\n]\n")
        print(json.dumps(row), flush=True)
