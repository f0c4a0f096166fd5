"""Every entry of the catalogue in a short run on a device, twice: whether it runs there, and gives the same numbers.

The runs are those of `scripts/kills.py --catalogue`.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import kills_catalogue  # noqa: E402
from grouprl.config.run import parse_config  # noqa: E402
from grouprl.training.loop import train  # noqa: E402

CLOCKED = ("seconds", "per_second", "memory", "time")
"""What a metric's name contains that no two runs share."""


def entries(device: str, workers: int) -> Iterator[tuple[str, float, str]]:
    """Yield each entry's name, how far apart its two runs are, and why they could not be compared, if so."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from pool.map(partial(entry, device=device), kills_catalogue.names())


def entry(name: str, device: str) -> tuple[str, float, str]:
    """Run an entry twice; a run that fails is infinitely far from any other."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            one, two = (numbers_of(name, device, Path(folder) / word) for word in ("one", "two"))
        except Exception as error:  # whatever ends it is what was looked for
            return name, math.inf, f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    if one.keys() != two.keys():
        return name, math.inf, f"metrics of one run alone: {sorted(one.keys() ^ two.keys())[:5]}"
    return name, max((_apart(one[key], two[key]) for key in one), default=math.inf), ""


def numbers_of(name: str, device: str, folder: Path) -> dict[tuple[int, str], float]:
    """Return the metrics of a run that are the same in every run, by step."""
    settings = kills_catalogue.settings(name)
    model = settings["model"] if isinstance(settings["model"], dict) else {"name": settings["model"]}
    settings["model"] = model | {"device": device}
    train(parse_config(settings), folder=folder, console=Console(quiet=True))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        (place, key): value
        for place, line in enumerate(lines)
        for key, value in line.items()
        if isinstance(value, int | float) and not any(word in key for word in CLOCKED)
    }


def _apart(a: float, b: float) -> float:
    if math.isnan(a) and math.isnan(b):
        return 0.0
    return abs(a - b) / max(abs(a), abs(b), 1e-12)
