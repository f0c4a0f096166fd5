"""What a method itself costs: preparing a step of 1,024 completions of up to 1,024 tokens, and its loss with
gradient."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import machine
import report
from grouprl.methods import CATALOGUE
from grouprl.storage.run_folder import write_text

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from batches import Case, named_outputs, random_case

GROUPS, COMPLETIONS, TOKENS = 64, 16, 1024
REPEATS = 3
HEAD = ["method", "prepare", "loss", "both"]
SLOW = 1.0
"""Seconds from which a method counts as an outlier."""


def step() -> Case:
    """A step of 1,024 completions in 64 groups, float32, with everything that any method may need."""
    return random_case(
        0, sizes=(COMPLETIONS,) * GROUPS, width=TOKENS, rewards="mixed", dtype=torch.float32, holes=False
    )


def seconds(name: str, case: Case) -> tuple[float, float]:
    """Best of some repeats of preparing the step, and of its loss and gradient, on this thread."""
    method = CATALOGUE[name].build()
    ready = method.prepare(case.batch)
    return best(lambda: method.prepare(case.batch)), best(lambda: gradient(method, case, ready))


def gradient(method: Any, case: Case, ready: Any) -> None:
    """Loss and its gradient with respect to log-probs, entropies and values."""
    leaves = [x.detach().requires_grad_() for x in (case.logp_bt, case.entropy_bt, case.value_bt, case.cross_bt)]
    value = method.loss(leaves[0], ready, leaves[1], outputs=named_outputs(method, leaves[3])).value
    if method.critic is not None:
        value = value + method.value_loss(leaves[2], ready).value
    torch.autograd.grad(value, leaves, allow_unused=True)


def best(call: Callable[[], None]) -> float:
    """Shortest of some calls, in CPU seconds: what a busy machine adds does not count."""
    taken = []
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def measure() -> dict[str, dict[str, float]]:
    """Seconds of every method of the catalogue, slowest first."""
    case = step()
    found = {}
    for name, entry in CATALOGUE.items():
        if not entry.dialect_of:
            prepare, loss = seconds(name, case)
            found[name] = {"prepare": round(prepare, 3), "loss": round(loss, 3), "both": round(prepare + loss, 3)}
    return dict(sorted(found.items(), key=lambda item: -item[1]["both"]))


PAGE = """# What a method costs

Measured by `make bench` (`bench/methods.py`): CPU seconds on one thread, best of {repeats}, for a step of
{completions:,} completions in {groups} groups with up to {tokens:,} tokens, float32. *prepare* computes the step's
advantages and loss weights; *loss* is its loss with the gradient with respect to the log-probs. Passes through a model
are not in it. {facts}

The slowest takes {slowest:.2f} s. {outliers}

{table}
"""


def page(found: dict[str, dict[str, float]]) -> str:
    """The text of docs/bench_methods.md."""
    slow = [name for name, row in found.items() if row["both"] >= SLOW]
    return PAGE.format(
        repeats=REPEATS,
        completions=GROUPS * COMPLETIONS,
        groups=GROUPS,
        tokens=TOKENS,
        facts=", ".join(f"{name} {value}" for name, value in machine.describe(("torch", "grouprl")).items()),
        slowest=next(iter(found.values()))["both"],
        outliers=f"At or above {SLOW:g} s: {', '.join(slow)}." if slow else f"None takes {SLOW:g} s.",
        table=report.markdown(HEAD, [[f"`{n}`", *(f"{x:.3f}" for x in row.values())] for n, row in found.items()]),
    )


def main(docs: Annotated[Path, typer.Option(help="Where bench_methods.md is written.")] = Path("docs")) -> None:
    """Measure every method and write the table."""
    torch.set_num_threads(1)
    found = measure()
    report.show(Console(), "CPU seconds", HEAD, [[n, *(f"{x:.3f}" for x in row.values())] for n, row in found.items()])
    write_text(docs / "bench_methods.md", page(found))


if __name__ == "__main__":
    typer.run(main)
