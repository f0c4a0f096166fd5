"""Sampling beside `generate`, and an update padded, packed and with shared prompts. Writes docs/bench_engines.md."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers
import typer
from rich.console import Console

import machine
import report
import sampling
import updating
from grouprl.policy.allocator import keep_freed_memory
from grouprl.storage.run_folder import write_json, write_text

NEAR = 2.0
"""Times what the products alone would take: the goal for sampling."""
WHY = (
    "What is left there: few rows wait for calls (some thirty operations a layer and token); many rows of short "
    "completions read all keys and values for one query each, which is bound by memory."
)
PAGE = """# Speed of sampling and of updating

Measured by `make bench` (`bench/engines.py`): processor seconds on one thread, medians of {rounds} rounds; both sides
take turns in one process, on the same model, prompts and lengths. Ratios are taken round by round.
{facts}

## Sampling beside `generate` of transformers

{sampling}

`CPU` and `wall`: `generate`'s seconds over ours. `products`: what the matrix products of the distinct prompts and of
the sampled tokens alone would take at the rates of their shapes on this machine; `over`: ours over that. `generate`
samples and returns tokens; ours returns the log-prob and the entropy of every token besides, and samples each row from
a seed of its own. Skewed lengths are log-normal with a median of a fifth of the longest; `generate` is told each row's
end by a stopping criterion and goes on to the longest.

{sampling_words}

## An update in different ways

{updating}

Forward and backward of the log-probs of all completions, 0.81 million parameters. `tokens saved`: tokens of the plain
way over those of the better one, which is what a perfect implementation would gain where all the time is spent per
token; attention does not shrink as much with shared prompts, and shrinks more with packing.
"""


def main(
    rounds: Annotated[int, typer.Option(help="Measured rounds of each comparison.")] = 9,
    docs: Annotated[Path, typer.Option(help="Where bench_engines.md and .json are written.")] = Path("docs"),
    quick: Annotated[bool, typer.Option("--quick", help="One round of the first cases.")] = False,
) -> None:
    """Measure and write the tables."""
    torch.set_num_threads(1)
    keep_freed_memory()
    transformers.logging.set_verbosity_error()
    console, rounds = Console(), 1 if quick else rounds
    compared_cases = {
        case: sampling.compare(case, rounds) for case in (sampling.CASES[3:4] if quick else sampling.CASES)
    }
    updates = [(case, updating.compare(case, rounds)) for case in (updating.cases()[:1] if quick else updating.cases())]
    tables = {
        "sampling": (sampling.HEAD, [sampling.row(*item) for item in compared_cases.items()]),
        "updating": (updating.HEAD, [updating.row(*item) for item in updates]),
    }
    for name, table in tables.items():
        report.show(console, name, *table)
    facts = machine.describe(("torch", "transformers", "grouprl"))
    data = {
        "machine": facts,
        "rounds": rounds,
        "sampling": [asdict(case) | found for case, found in compared_cases.items()],
        "updating": [{"rows": case.words, "engine": case.engine, "way": case.way} | x for case, x in updates],
    }
    docs.mkdir(parents=True, exist_ok=True)
    write_json(docs / "bench_engines.json", data)
    text = {name: report.markdown(*table) for name, table in tables.items()}
    line = ", ".join(f"{name} {value}" for name, value in facts.items())
    words = verdict([(case.words, found) for case, found in compared_cases.items()])
    write_text(docs / "bench_engines.md", PAGE.format(rounds=rounds, facts=line, sampling_words=words, **text))


def verdict(found: list[tuple[str, dict[str, Any]]]) -> str:
    """Say which goals were missed: the ratio to `generate`, and twice the products alone."""
    missed = [f"{words} ({x['ratio']:.2f} of {x['goal']:g})" for words, x in found if x["ratio"] < x["goal"]]
    far = [f"{words} ({x['over_products']:.1f})" for words, x in found if x["over_products"] > NEAR]
    beside = f"Missed: {'; '.join(missed)}." if missed else "Every goal beside `generate` is met."
    above = f"Above {NEAR:g} × products: {'; '.join(far)}." if far else f"All within {NEAR:g} × products."
    return f"{beside} {above} {WHY}" if far else f"{beside} {above}"


if __name__ == "__main__":
    typer.run(main)
