"""Train fleets whose vehicles choose at once, with and without what PARCO and CAMP add, and record their costs.

Run `python scripts/fleets.py runs 0,1 0123` (seeds, arms) for docs/fleets.json, `... page` for docs/routing.md.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributions import Distribution

from finished import finished
from grouprl.envs.construction.fleet import DeliveryFleet
from grouprl.policy import ArrayPolicy, Build, Pointers, Seen
from grouprl.policy.vectors.array_distributions import RankedPicks
from grouprl.policy.vectors.module_policy import MODEL_FILE
from grouprl.protocols import Request
from grouprl.rollout.local.array_sampler import ArraySampler
from grouprl.tasks import load_task
from page_record import fill, keep

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "fleets.json", DOCS / "routing.md"
WORLDS = "env:grouprl.envs.construction.fleet"
SIZES = {"width": 32, "layers": 1, "heads": 4}
INSTANCES, STEPS = 128, 60


class _InOrder(RankedPicks):
    """Picks whose conflicts go by the number of the vehicle."""

    def completed(self, value_nk: Tensor) -> Tensor:
        return torch.cat([value_nk, torch.zeros_like(value_nk)], -1)


class ByNumber(Pointers):
    """Vehicles of which the first in number gets a node that several pick."""

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        return _InOrder(list((self.module(seen) / temperature).unbind(1)))


class Blind(Pointers):
    """Vehicles that see no preferences."""

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        unseen = {**seen.context, "profile": torch.zeros_like(seen.context["profile"])}
        return super().distribution(replace(seen, context=unseen), temperature)


ARMS: dict[str, tuple[str, type[ArrayPolicy]]] = {
    "PARCO: by probability": ("DeliveryFleet", Pointers),
    "by number": ("DeliveryFleet", ByNumber),
    "CAMP: preferences are seen": ("ProfiledFleet", Pointers),
    "preferences are not seen": ("ProfiledFleet", Blind),
}


def settings(arm: str, seed: int, steps: int = STEPS) -> dict[str, object]:
    """Return the configuration of a run."""
    world, kind = ARMS[arm]
    return {
        "task": {"name": f"{WORLDS}:{world}", "own_luck": True},
        "model": {
            "name": "pointers" if kind is Pointers else f"{Path(__file__).resolve()}:{kind.__name__}",
            "settings": SIZES,
        },
        "method": {"base": "reinforce", "baseline": "group"},
        "steps": steps,
        "seed": seed,
        "batch": {"prompts": 16, "group_size": 8},
        "optim": {"lr": 1e-3, "schedule": "constant"},
        "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
        "run": {"threads": 1, "rollouts_every": 1000},
    }


def solved(choose: Callable[[list[Any], list[DeliveryFleet]], list[np.ndarray]], name: str) -> list[DeliveryFleet]:
    """Return the worlds of held-out instances, played to the end."""
    task = load_task({"name": f"{WORLDS}:{name}"})
    worlds = [task.environment() for _ in range(INSTANCES)]
    shown = [world.reset(task.example("eval", index), 0) for index, world in enumerate(worlds)]
    maps, live, done = [each.context for each in shown], list(range(INSTANCES)), list(worlds)
    while live:
        asked = [replace(shown[i], context=maps[i]) for i in live]
        for i, action in zip(live, choose(asked, [done[i] for i in live]), strict=True):
            shown[i] = worlds[i].step(action).observation
        live = [i for i in live if shown[i].legal is not None]
    return [world._inner if hasattr(world, "_inner") else world for world in worlds]


def likeliest(policy: ArrayPolicy) -> Callable[[list[Any], list[DeliveryFleet]], list[np.ndarray]]:
    sampler = ArraySampler(policy)

    def choose(asked: list[Any], worlds: list[DeliveryFleet]) -> list[np.ndarray]:
        found = sampler.sample([Request(each, 1, seed=0, greedy=True) for each in asked])
        return [np.asarray(actions[0]) for actions in found.actions]

    return choose


def nearest(asked: list[Any], worlds: list[DeliveryFleet]) -> list[np.ndarray]:
    """Let every vehicle pick the nearest customer that it may serve, and the nearer one have it."""
    return [_nearest(each) for each in asked]


def _nearest(shown: Any) -> np.ndarray:
    place_n2, here_k = shown.context["map"][:, :2], shown.values["here"]
    legal_kn = shown.legal[: len(here_k) * len(place_n2)].reshape(len(here_k), -1)
    far_kn = np.linalg.norm(place_n2[here_k][:, None] - place_n2[None], axis=-1)
    cost_kn = np.where(legal_kn, far_kn, np.inf)
    cost_kn[:, 0] += np.where(legal_kn[:, 0], 100.0, 0.0)  # home, if nothing else
    cost_kn[np.arange(len(here_k)), here_k] += 10.0  # to stay, before that
    pick_k = cost_kn.argmin(1)
    return np.concatenate([pick_k, cost_kn.min(1).argsort().argsort()])


def measured(worlds: list[DeliveryFleet]) -> dict[str, Any]:
    """Return the mean cost with its 95 % interval, the rounds, and the share of picks that were lost."""
    cost_n = np.array([world.cost() for world in worlds])
    half = 1.96 * cost_n.std(ddof=1) / len(cost_n) ** 0.5
    rounds = np.mean([world._moves / world.vehicles for world in worlds])
    lost = np.mean([world.score()["#lost_picks"] for world in worlds])
    ends = [round(float(x), 3) for x in (cost_n.mean(), cost_n.mean() - half, cost_n.mean() + half)]
    return {"cost": ends, "rounds": round(float(rounds), 1), "lost": round(100 * float(lost), 1)}


def run(arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train, and return what is measured before and after."""
    begun = time.process_time()
    if not (folder / "summary.json").exists():
        finished(settings(arm, seed), folder)
    spent = round(time.process_time() - begun)
    world, kind = ARMS[arm]
    spaces = load_task(f"{WORLDS}:{world}").spaces
    fresh, learnt = (kind(Build(spaces=spaces, seed=seed), **SIZES) for _ in range(2))  # type: ignore[call-arg]
    learnt.load_trainable_state(load_file(folder / "model" / MODEL_FILE))
    before, after = (measured(solved(likeliest(each), world)) for each in (fresh, learnt))
    rule = measured(solved(nearest, world))["cost"][0]
    return {"arm": arm, "seed": seed, "before": before["cost"][0], **after, "rule": rule, "seconds": spent}


def record(arms: list[str], seeds: list[int], kept: Path) -> None:
    """Run what was named, and put it into the record."""
    for seed, arm in itertools.product(seeds, arms):
        row = run(arm, seed, kept / f"{list(ARMS).index(arm)}-{seed}-{STEPS}")
        keep(RECORD, row, ("arm", "seed"))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the record as a table."""
    lines = [
        "| solver | seed | before | after | rounds | picks lost | rule | processor s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: (list(ARMS).index(row["arm"]), row["seed"])):
        mid, low, high = row["cost"]
        lines.append(
            f"| {row['arm']} | {row['seed']} | {row['before']:.2f} | {mid:.2f} [{low:.2f}, {high:.2f}] | "
            f"{row['rounds']} | {row['lost']} % | {row['rule']:.2f} | {row['seconds']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(tempfile.gettempdir()) / "fleet_runs"
    if sys.argv[1] == "runs":
        named = [arm for number, arm in enumerate(ARMS) if str(number) in sys.argv[3]]
        record(named, [int(word) for word in sys.argv[2].split(",")], where)
    else:
        fill(PAGE, {"fleets": table(json.loads(RECORD.read_text(encoding="utf-8")))})
