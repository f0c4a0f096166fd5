"""Hold our solvers and rules beside OR-Tools, which stays in an environment of its own.

Run `make solvers`, or `python scripts/solver_gaps.py runs PYTHON` (one that has ortools), for docs/solver_gaps.json,
`... page` for the table of docs/routing.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from grouprl.envs.construction import PROBLEMS, Instance
from grouprl.envs.construction.problem import solved
from grouprl.envs.construction.reference import searched
from grouprl.envs.construction.tours import length_of
from grouprl.tasks import load_task
from page_record import fill, keep
from routing import RULES, played

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "solver_gaps.json", DOCS / "routing.md"
SMALL = {"job_shop": 4, "knapsack": 20, "tsp": 10, "cvrp": 8}
LARGE = {"job_shop": 8, "knapsack": 60, "tsp": 20, "cvrp": 15}
"""Sizes of the table above, which are solved exactly, and larger ones."""
INSTANCES = 32


def instances(problem: str, count: int, number: int = INSTANCES) -> list[Instance]:
    """Return the first held-out instances of the task."""
    task = load_task({"name": f"construct:{problem}", "count": count})
    return [task.instance(task.example("eval", index)) for index in range(number)]  # type: ignore[attr-defined]


def cost_of(problem: str, count: int, instance: Instance, choices: list[int]) -> float:
    """Return the cost of a solver's choices, by our own rules; a tour begins wherever it likes."""
    if problem == "tsp":
        return float(length_of(instance)[choices, np.roll(choices, -1)].sum())
    return solved(PROBLEMS[problem](count), instance, choices)


def reference(python: str, problem: str, count: int) -> dict[str, Any]:
    """Return OR-Tools' costs of the held-out instances, and of how many it proved that nothing is lower."""
    given = instances(problem, count)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as kept:
        file = Path(kept) / "instances.json"
        arrays = [{name: values.tolist() for name, values in each.items()} for each in given]
        file.write_text(json.dumps([{"problem": problem, **each} for each in arrays]), encoding="utf-8")
        command = [python, str(Path(__file__).with_name("ortools_solve.py")), str(file)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    costs = [cost_of(problem, count, one, choices) for one, (choices, _) in zip(given, found, strict=True)]
    spent = round((time.monotonic() - begun) / INSTANCES, 2)
    proven = sum(proof for _, proof in found)
    return {"costs": [round(cost, 6) for cost in costs], "proven": proven, "seconds": spent}


def gap(costs: list[float], best: list[float]) -> list[float]:
    """Return the mean of how many percent costs are above others, with its 95 % interval."""
    above = 100 * (np.array(costs) - best) / np.abs(best)
    half = 1.96 * above.std(ddof=1) / len(above) ** 0.5
    return [round(float(x), 2) for x in (above.mean(), above.mean() - half, above.mean() + half)]


def ours(problem: str, count: int, number: int = INSTANCES) -> list[float] | None:
    """Return the costs that our exact solvers find, or PyVRP for tours and routes; None: the size has no solver."""
    made, given = PROBLEMS[problem](count), instances(problem, count, number)
    found = [made.solution(each) or (searched(made, each) if problem in ("tsp", "cvrp") else None) for each in given]
    return None if None in found else [each.cost for each in found]  # type: ignore[union-attr]


def rule(problem: str, count: int) -> list[float]:
    """Return the costs of the rule of the table above."""
    made, choose = PROBLEMS[problem](count), RULES[problem][1]
    return [played(made, each, choose).cost() for each in instances(problem, count)]


def record(python: str) -> None:
    """Put what OR-Tools, our solvers and the rules find into the record, at both sizes."""
    for problem, count in [*SMALL.items(), *LARGE.items()]:
        found = reference(python, problem, count)
        row: dict[str, Any] = {"problem": problem, "count": count, **found}
        known = ours(problem, count)
        row["ours"] = None if known is None else gap(known, found["costs"])
        row["rule"] = gap(rule(problem, count), found["costs"])
        keep(RECORD, row, ("problem", "count"))


def table(rows: list[dict[str, Any]]) -> str:
    """Return what solvers and rules found as a table."""
    lines = ["| problem | proven | s an instance | exact or PyVRP | rule |", "| --- " * 5 + "|"]
    for row in rows:
        lines.append(
            f"| `{row['problem']}`, {row['count']} | {row['proven']} of {INSTANCES} | {row['seconds']} | "
            f"{'' if row['ours'] is None else shown(row['ours'])} | {shown(row['rule'])} |"
        )
    return "\n".join(lines)


def shown(ends: list[float]) -> str:
    """Return a gap with its interval, without a sign before 0."""
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(round(x, 1) + 0.0 for x in ends))


if __name__ == "__main__":
    if sys.argv[1] == "runs":
        record(sys.argv[2])
    else:
        fill(PAGE, {"solvers": table(json.loads(RECORD.read_text(encoding="utf-8")))})
