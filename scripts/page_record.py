"""Rows that scripts measured: a record of them, and their tables in a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def keep(record: Path, row: dict[str, Any], key: tuple[str, ...]) -> None:
    """Put a row into a record, in place of the one with the same `key`, and print it."""
    rows = json.loads(record.read_text(encoding="utf-8")) if record.exists() else []
    rows = [each for each in rows if any(each[name] != row[name] for name in key)]
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in [*rows, row])
    record.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(json.dumps(row), flush=True)


def tuned(
    record: Path,
    arm: str,
    run: Callable[[int, float], dict[str, Any]],
    good: Callable[[dict[str, Any]], float],
    rates: Sequence[float],
    tuned_on: int,
    seeds: Sequence[int],
    best: Callable[..., float] = max,
) -> None:
    """Run an arm at each rate on a seed of its own, then on `seeds` at the best rate, and put these into the record.

    Args:
        record: the file.
        arm: its name.
        run: measures a run of a seed at a rate.
        good: the number of a measurement by which rates are compared.
        rates: the rates to be tried.
        tuned_on: the seed on which they are.
        seeds: those of the record.
        best: max, or min where a smaller number is better.
    """
    tried = {lr: good(run(tuned_on, lr)) for lr in rates}
    chosen = best(tried, key=lambda lr: tried[lr])
    for seed in seeds:
        keep(record, {"arm": arm, "seed": seed, "lr": chosen, "tried": tried, **run(seed, chosen)}, ("arm", "seed"))


def fill(page: Path, tables: Mapping[str, str]) -> None:
    """Write tables into a page, each between the two comments with its name."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        head, rest = text.split(f"<!-- {name} -->")
        end = f"<!-- end of {name} -->"
        text = f"{head}<!-- {name} -->\n{lines}\n{end}{rest.split(end)[1]}"
    page.write_text(text, encoding="utf-8")
