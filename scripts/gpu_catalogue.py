"""Every entry of the catalogue in a short run on a device: whether it runs there, and goes on from a checkpoint to the
same numbers.

The runs are those of `scripts/kills.py --catalogue`. The last two steps of each are forgotten and taken again.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import kills_catalogue  # noqa: E402
from finished import finished  # noqa: E402
from gpu_checks import Finding  # noqa: E402
from grouprl.config.run import load_config  # noqa: E402
from grouprl.core.errors import GrouprlError  # noqa: E402
from grouprl.training.loop import train  # noqa: E402

CLOCKED = ("seconds", "per_second", "memory", "time")
"""What a metric's name contains that no two runs share."""
LIMIT = 1e-3
"""Share by which a number may differ where a kernel adds in any order; equal numbers are counted apart."""
Numbers = dict[tuple[int, str], float]


def entries(device: str, workers: int, names: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield how far apart the numbers of each entry's run are before and after it was resumed."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from pool.map(partial(entry, device=device), names or kills_catalogue.names())


def entry(name: str, device: str) -> Finding:
    """Run an entry, and its last two steps again; a run that fails is infinitely far from any other."""
    with tempfile.TemporaryDirectory() as place:
        try:
            whole, resumed = numbers_of(name, device, Path(place) / "run")
        except (GrouprlError, RuntimeError, ValueError, TypeError, AssertionError) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({where.name}, line {where.lineno})"
            return Finding("catalogue", name, math.inf, LIMIT, said)
    if whole.keys() != resumed.keys():
        alone = sorted(whole.keys() ^ resumed.keys())[:5]
        return Finding("catalogue", name, math.inf, LIMIT, f"only one of the runs has {alone}")
    return Finding("catalogue", name, max(_apart(whole[key], resumed[key]) for key in whole), LIMIT)


def numbers_of(name: str, device: str, folder: Path) -> tuple[Numbers, Numbers]:
    """Return the metrics of a run, and those after its last two steps were forgotten and taken again.

    Of two, since what a step leaves is read off the numbers of the next.
    """
    settings = kills_catalogue.with_teacher(name, folder.parent)
    model = settings["model"] if isinstance(settings["model"], dict) else {"name": settings["model"]}
    settings["model"] = model | {"device": device}
    settings["run"] = settings["run"] | {"checkpoint_every": 1, "keep": 3}
    finished(settings, folder)
    whole = metrics(folder)
    for last in sorted((folder / "checkpoints").glob("step-*"))[-2:]:
        shutil.rmtree(last)
    (folder / "summary.json").unlink()
    train(load_config(str(folder / "config.yaml")), folder=folder, resume=True, console=Console(quiet=True))
    return whole, metrics(folder)


def metrics(folder: Path) -> Numbers:
    """Return the numbers of a run that do not depend on a clock, by line and name."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        (place, key): float(value)
        for place, line in enumerate(lines)
        for key, value in line.items()
        if isinstance(value, int | float) and not any(word in key for word in CLOCKED)
    }


def _apart(a: float, b: float) -> float:
    if math.isnan(a) and math.isnan(b):
        return 0.0
    return abs(a - b) / max(abs(a), abs(b), 1e-12)
