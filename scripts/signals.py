"""Strike commands with SIGINT and SIGTERM at moments all over their course, and look at what they say and leave.

A product of commands, moments (the n-th call of a function of the package, and the points between which
`scripts/kills.py` kills) and signals (once, twice, one after the other). No traceback, the exit code promised, no
process left, nothing half-written, and a training that goes on to the same bytes. Writes docs/signals.json.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import kills  # noqa: E402
import struck  # noqa: E402
from grouprl.storage.run_folder import write_json  # noqa: E402

RUNS = ("plain", "own", "ahead")
MISSED = ("rewinding", "episodes", "pretrain")
"""Points that these runs do not come to."""


def moments(kind: str, met: int, calls: int, luck: random.Random) -> list[tuple[int, str]]:
    """Return numbers of calls spread over the course, each at random in its stretch, and a number for each point."""
    at = [(max(1, round(met * (i + luck.random()) / calls)), "") for i in range(calls)]
    if kind in RUNS:
        at += [(luck.choice((1, 1, 2)), point) for point in kills.POINTS if point not in MISSED]
    return at


def main(
    calls: Annotated[int, typer.Option(help="Moments per command, besides the points.")] = 12,
    share: Annotated[float, typer.Option(help="The share of the product that is tried, at random.")] = 1.0,
    minutes: Annotated[float, typer.Option(help="Begin nothing after so many minutes.")] = 600.0,
    names: Annotated[
        list[str] | None, typer.Argument(help="Commands or runs (plain, own, ahead); default: all.")
    ] = None,
    seed: int = 0,
) -> None:
    """Try the product and print each fault; the exit code is 1 if there is one."""
    luck, begun = random.Random(seed), time.monotonic()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        whole = {kind: _whole(home, kind) for kind in RUNS}
        for name in names or [*RUNS, *struck.READERS]:
            met = whole[name][1] if name in RUNS else struck.command(struck.READERS[name], home, count=True).met
            product = [(at, kind) for at in moments(name, met, calls, luck) for kind in struck.KINDS]
            for done, ((number, point), kind) in enumerate(luck.sample(product, round(share * len(product)))):
                if done % 20 == 0:
                    print(f"{name}: {done} of {len(product)}, {(time.monotonic() - begun) / 60:.0f} min", flush=True)
                if time.monotonic() - begun > 60 * minutes:
                    break
                strike = struck.Strike(number, struck.KINDS[kind], point)
                if name in RUNS:
                    outcome, faults = struck.tried(home, name, strike, whole[name][0])
                else:
                    outcome, faults = struck.tried_reader(home, name, strike)
                came = outcome.met >= number or outcome.code != 0
                rows.append(
                    {
                        "command": name,
                        "moment": point or number,
                        "signals": kind,
                        "came": came,
                        "code": outcome.code,
                        "faults": faults,
                    }
                )
                if faults:
                    print(json.dumps(rows[-1]), flush=True)
            print(name, _counted([row for row in rows if row["command"] == name]), flush=True)
    write_json(
        ROOT / "docs" / "signals.json",
        [
            _counted([r for r in rows if r["command"] == name]) | {"command": name}
            for name in dict.fromkeys(str(row["command"]) for row in rows)
        ],
    )
    sys.exit(any(row["faults"] for row in rows))


def _whole(home: Path, kind: str) -> tuple[dict[str, object] | None, int]:
    """Make the uninterrupted run of a kind; its evidence (None: it depends on the speed of processes), its calls."""
    struck.prepare(home, kind)
    name = "whole" if kind == "plain" else f"whole-{kind}"
    outcome = struck.command(["train", f"{kind}.yaml", "--folder", name], home, count=True)
    assert outcome.code == 0, outcome.said
    return None if kind == "ahead" else kills.evidence(home / name), outcome.met


def _counted(rows: list[dict[str, object]]) -> dict[str, object]:
    codes = Counter(str(row["code"]) for row in rows if row["came"])
    return {
        "tried": len(rows),
        "came": sum(bool(row["came"]) for row in rows),
        "exit codes": dict(sorted(codes.items())),
        "faults": sum(bool(row["faults"]) for row in rows),
    }


if __name__ == "__main__":
    typer.run(main)
