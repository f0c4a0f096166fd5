"""The results as tables, for the terminal and for docs/bench.md."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from floor import Floor
from jobs import Job
from race import Race, median, spread

Rows = list[list[str]]
SPEED = ["job", "library", "s/step", "rollout", "score", "update", "other", "CPU s/step", "tokens/s", "peak RSS"]
RATIO = ["job", "wall", "quartiles", "CPU", "quartiles", "goal", "rows trained", "alike", "products", "ours : products"]
MEMORY = ["vocabulary", "chunked (grouprl)", "log_softmax of all logits"]


def speed_rows(job: Job, race: Race) -> Rows:
    """One row per library: medians."""
    rows = []
    for who, steps, memory in (("grouprl", race.ours, race.memory_ours), ("TRL", race.theirs, race.memory_theirs)):
        wall, rollout, score = (median(steps, key) for key in ("wall", "seconds_rollout", "seconds_score"))
        update = median(steps, "seconds_update")
        parts = [f"{x:.3f}" for x in (wall, rollout, score, update, wall - rollout - score - update)]
        rate = f"{median(steps, 'tokens') / wall:,.0f}"
        rows.append([job.name, who, *parts, f"{median(steps, 'cpu'):.3f}", rate, f"{memory[1]:.0f} MB"])
    return rows


def ratio_row(job: Job, race: Race, products: Floor, repeated: float) -> list[str]:
    """TRL's cost over ours, and ours over that of its matrix products."""
    cells = [job.name]
    for key in ("wall", "cpu"):
        ratios = race.ratios(key)
        lower, upper = spread(ratios)
        cells += [f"{middle(ratios):.2f}", f"{lower:.2f} … {upper:.2f}"]
    trained = f"{median(race.ours, 'rows_trained'):.0%}"
    over = median(race.ours, "cpu") / products.seconds
    return [*cells, f"{job.goal:.1f}", trained, f"{repeated:.2f}", f"{products.seconds:.3f} s", f"{over:.1f}"]


def verdict(results: dict[str, Any]) -> str:
    """Say which goals were met, and how near to its products alone a step would have to be for those missed."""
    lines = []
    for name, found in results["jobs"].items():
        ratio, goal, over = found["ratio"]["cpu"]["median"], found["goal"], found["ours_over_products"]
        theirs = found["trl"]["cpu"] / found["products"]["seconds"]
        words = f"{name}: {ratio:.2f} of {goal:g}, {'met' if ratio >= goal else 'missed'}; {over:.1f} × products."
        if ratio < goal:
            words += (
                f" TRL's step takes {theirs:.1f} × what the products of this step take, so that the goal stands at "
                f"{theirs / goal:.1f} × products; what is left beside them are elementwise operations over all tokens, "
                "attention in small matrices and calls."
            )
        lines.append(f"- {words}")
    return "\n".join(lines)


def middle(values: list[float]) -> float:
    """Median of plain numbers."""
    return median([{"x": value} for value in values], "x")


def memory_rows(found: dict[int, dict[str, float]]) -> Rows:
    """One row per vocabulary."""
    return [[f"{size:,}", f"{by['chunked']:.0f} MB", f"{by['whole']:.0f} MB"] for size, by in found.items()]


def show(console: Console, title: str, head: list[str], rows: Rows) -> None:
    """Print a table on the terminal."""
    table = Table(*head, title=title)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def markdown(head: list[str], rows: Rows) -> str:
    """The same table in Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


PAGE = """# Speed

Measured by `make bench` (`bench/run.py`). One step is everything from choosing prompts to the updated weights.
{facts}

## Beside TRL's `GRPOTrainer`

{speed}

Medians over {steps} steps. Both libraries run in processes of their own and take turns step by step, so that whatever
else the machine does disturbs both; wall-clock times are those of a machine that was not idle, CPU seconds suffer less
from that. Both start from the same warmed-up model folder and complete the same prompts with the same group size,
temperature, learning rate, reward function, loss (token mean, group mean and sample standard deviation, no KL) and one
optimiser step per rollout. The learning rate is so small that both sample from the same policy throughout, and lengths
stay alike. Neither evaluates nor saves; TRL's logging is off, this library's metrics are on. TRL's
`update` is its training step without generation, scoring and preparation; `other` holds the rest.

- A: {a} (0.156 million parameters)
- B: {b} (0.81 million parameters)
- *mixed*: the same with a reward that varies within nearly every group. A row whose gradient is exactly zero costs this
  library no pass through the model; here hardly any row is left out.

A token whose whole history several completions share goes through the model once, when it is sampled and when it is
trained
on: completions of one prompt begin alike as long as the policy is sure of what it says. `alike` is the number of tokens
over that of distinct histories, each prompt counted once; nothing is saved at 1. It is a property of the policy.

## Ratios

{ratio}

{verdict}

`wall` and `CPU`: TRL's seconds over ours, median of the pairs of steps. `products`: what the step's matrix products
alone would take on one thread at the rates measured on this machine for their shapes, every token of every completion
counted (`bench/floor.py`); the last column is our CPU seconds over that; the goal there is 2 on B.

## Memory of the log-prob step

{memory}

Peak memory that forward and backward of {positions:,} log-probs need beyond hidden states, weight and their gradients.
"""


def page(results: dict[str, Any], jobs: dict[str, str], tables: dict[str, str], positions: int) -> str:
    """The text of docs/bench.md."""
    facts = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    words = {"a": jobs["A"], "b": jobs["B"], "verdict": verdict(results)}
    return PAGE.format(facts=facts, steps=results["steps"], positions=positions, **words, **tables)
