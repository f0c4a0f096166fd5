"""Train the constructive problems of docs/routing.md, and record how far their solutions are from the best.

Run `python scripts/routing.py runs [PROBLEM …] [SEED …]` for docs/routing.json, `… draw` for the picture, `… page` for
the tables.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import numpy as np
import torch
import yaml
from safetensors.torch import load_file

from finished import finished
from grouprl.envs.construction import PROBLEMS, Building, ConstructionProblem, ConstructionWorld, Instance
from grouprl.envs.construction.allocation import SKILLS
from grouprl.envs.construction.problem import View
from grouprl.policy import Build, Pointer
from grouprl.policy.vectors.module_policy import MODEL_FILE
from grouprl.protocols import Request
from grouprl.rollout.local.array_sampler import ArraySampler
from grouprl.tasks import load_task

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE, PICTURE = DOCS / "routing.json", DOCS / "routing.md", DOCS / "routing.png"
FLOWS = DOCS / "flows.json"
COUNTS = {"tsp": 10, "cvrp": 8, "knapsack": 20, "assignment": 8, "job_shop": 4, "allocation": 8}
SEEDS = (0, 1, 2)
GAP = "eval/reward/#gap_percent"


def settings(problem: str, seed: int, steps: int = 60) -> dict[str, object]:
    """Return the page's configuration for a problem."""
    text = PAGE.read_text(encoding="utf-8")
    plain = yaml.safe_load(text.split("```yaml\n", 1)[1].split("```", 1)[0])
    task = {"name": f"construct:{problem}", "count": COUNTS[problem], "gap": True}
    return {**plain, "task": task, "steps": steps, "seed": seed, "run": {"threads": 1}}


def nearest(column: int, sign: float) -> Callable[[View, np.ndarray, np.ndarray], int]:
    def chosen(seen: View, map_nf: np.ndarray, legal_n: np.ndarray) -> int:
        return int(np.where(legal_n, sign * seen.nodes_nd[:, column], np.inf).argmin())

    return chosen


def nearest_customer(seen: View, map_nf: np.ndarray, legal_n: np.ndarray) -> int:
    far_n = np.where(legal_n, seen.nodes_nd[:, 0], np.inf)
    far_n[0] = np.inf if legal_n[1:].any() else 0.0
    return int(far_n.argmin())


def densest(seen: View, map_nf: np.ndarray, legal_n: np.ndarray) -> int:
    return int(np.where(legal_n, map_nf[:, 0] / np.maximum(map_nf[:, 1], 1e-9), -np.inf).argmax())


def most_added(seen: View, map_nf: np.ndarray, legal_n: np.ndarray) -> int:
    return int((seen.nodes_nd[:, SKILLS:].mean(1) * map_nf[:, -1]).argmax())


RULES = {
    "tsp": ("nearest city", nearest(0, 1.0)),
    "cvrp": ("nearest customer that fits", nearest_customer),
    "knapsack": ("most value per weight", densest),
    "assignment": ("cheapest task", nearest(0, 1.0)),
    "job_shop": ("most work left", nearest(4, -1.0)),
    "allocation": ("most utility added", most_added),
}
"""By problem: the obvious rule."""


def played(problem: ConstructionProblem, instance: Instance, choose: Callable[..., int], seed: int = 0) -> Building:
    """Return a solution that a rule builds."""
    building, map_nf = problem.begin(instance, np.random.default_rng(seed)), problem.map_of(instance)
    while (legal_n := building.legal()).any():
        building.take(choose(building.view(), map_nf, legal_n))
    return building


def rule_gap(name: str, count: int = 128) -> float:
    """Return the mean gap of the rule in percent."""
    problem = PROBLEMS[name](COUNTS[name])
    found = []
    for seed in range(count):
        instance = problem.sample(np.random.default_rng(seed))
        found.append(problem.gap(instance, played(problem, instance, RULES[name][1], seed).cost()))
    return mean(gap for gap in found if gap is not None)


def run(problem: str, seed: int, folder: Path) -> dict[str, object]:
    """Train unless that was done, and return the gaps before and after with their intervals."""
    if not (folder / "summary.json").exists():
        finished(settings(problem, seed), folder)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evals = [row for row in rows if row["phase"] == "eval"]
    ends = {
        side: [row[GAP], row[f"{GAP}_low"], row[f"{GAP}_high"]]
        for side, row in (("before", evals[0]), ("after", evals[-1]))
    }
    return {"problem": problem, "count": COUNTS[problem], "seed": seed, **ends, "seconds": round(rows[-1]["seconds"])}


def record(names: list[str], seeds: list[int], kept: Path) -> None:
    """Run what was named, and put it into the record."""
    for problem, seed in itertools.product(names, seeds):
        rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
        rows = [row for row in rows if (row["problem"], row["seed"]) != (problem, seed)]
        row = run(problem, seed, kept / f"{problem}-{seed}") | {"rule": round(rule_gap(problem), 2)}
        RECORD.write_text(json.dumps([*rows, row], indent=1) + "\n")
        print(json.dumps(row), flush=True)


def table(rows: list[dict]) -> str:
    """Return the record as a table."""
    lines = [
        "| problem | seed | before | after | rule | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: (list(COUNTS).index(row["problem"]), row["seed"])):
        before, after = (f"{mid:.1f} [{low:.1f}, {high:.1f}]" for mid, low, high in (row["before"], row["after"]))
        rule = f"{row['rule']:.1f} ({RULES[row['problem']][0]})"
        name = f"`{row['problem']}`, {row['count']}"
        lines.append(f"| {name} | {row['seed']} | {before} | {after} | {rule} | {row['seconds']} |")
    return "\n".join(lines)


def greedy(policy: Pointer, world: ConstructionWorld, example: object) -> ConstructionWorld:
    """Let a policy build a solution by its likeliest choices."""
    sampler, shown = ArraySampler(policy), world.reset(example, 0)
    context, over = shown.context, False
    while not over:
        prompt = type(shown)(shown.values, shown.legal, context)
        step = world.step(sampler.sample([Request(prompt, 1, seed=0, greedy=True)]).actions[0][0])
        shown, over = step.observation, step.terminated
    return world


def draw(kept: Path) -> None:
    """Draw the tours of two instances before and after training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 4, figsize=(12, 6.2))
    for row, name in enumerate(("tsp", "cvrp")):
        task = load_task({"name": f"construct:{name}", "count": COUNTS[name], "gap": True})
        fresh, trained = (Pointer(Build(spaces=task.spaces, task=task, seed=0)) for _ in range(2))
        trained.load_trainable_state(load_file(kept / f"{name}-0" / "model" / MODEL_FILE))
        for half, index in enumerate((0, 1)):
            for side, policy in enumerate((fresh, trained)):
                world = greedy(policy, task.environment(), task.example("eval", index))
                _draw_tour(axes[row, 2 * half + side], name, world, ("before", "after")[side])
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=90)


def _draw_tour(axis, name: str, world: ConstructionWorld, when: str) -> None:
    place_n2, path = world.instance["place"], [*world.building.chosen]
    path.append(path[0])
    axis.plot(*place_n2[path].T, color="tab:blue", linewidth=1.5)
    axis.scatter(*place_n2.T, color="black", s=18, zorder=3)
    if name == "cvrp":
        axis.scatter(*place_n2[:1].T, color="tab:red", marker="s", s=60, zorder=4)
    gap = world.problem.gap(world.instance, world.building.cost())
    axis.set_title(f"{name} {when}: length {world.building.cost():.2f}, gap {gap:.1f} %", fontsize=10)
    axis.set_aspect("equal")
    axis.set_xticks([])
    axis.set_yticks([])


def flow_table(rows: list[dict]) -> str:
    """Return the record of scripts/flows.py as a table, a line per method."""
    lines = ["| method | seeds | L1 before | L1 after | seconds |", "| --- | --- | --- | --- | --- |"]
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        before, after = (", ".join(f"{row['l1'][side]:.2f}" for row in own) for side in (0, 1))
        seeds, seconds = (", ".join(str(row[key]) for row in own) for key in ("seed", "seconds"))
        lines.append(f"| `{name}` | {seeds} | {before} | {after} | {seconds} |")
    return "\n".join(lines)


def page() -> None:
    """Write the records into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, made in (("record", table), ("flows", flow_table)):
        begin, end = f"<!-- {name} -->", f"<!-- end of the {name} -->"
        head, rest = text.split(begin)
        rows = json.loads((RECORD if name == "record" else FLOWS).read_text())
        text = f"{head}{begin}\n{made(rows)}\n{end}{rest.split(end)[1]}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(tempfile.gettempdir()) / "routing_runs"
    if sys.argv[1] == "runs":
        named = [word for word in sys.argv[2:] if word in COUNTS]
        record(named or list(COUNTS), [int(word) for word in sys.argv[2:] if word.isdigit()] or list(SEEDS), where)
    elif sys.argv[1] == "draw":
        draw(where)
    else:
        page()
