"""Kill runs of many methods at many moments, go on after each, and compare what they leave with uninterrupted runs.

Writes docs/kills.json. `python scripts/kills.py --kills 10 --seed 0`. With `--catalogue` every entry of the catalogue
makes a short run, is killed inside of training and goes on; gradients are counted, and docs/kills_catalogue.json keeps
what was found so far: entries in it are not tried again, unless `--afresh`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import kills  # noqa: E402
from grouprl.storage.run_folder import write_json  # noqa: E402


def main() -> int:
    """Run all methods; the exit code is 1 when a killed run ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="kills planned per method")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=list(kills.METHODS))
    parser.add_argument("--catalogue", action="store_true", help="one kill in a short run of every entry")
    parser.add_argument("--afresh", action="store_true", help="forget what docs/kills_catalogue.json says")
    options = parser.parse_args()
    if options.catalogue:
        return catalogue(options.seed, options.afresh)
    rows, begin = [], time.time()
    for name in options.methods:
        rows.append(tried(name, options.kills, options.seed))
        print(json.dumps(rows[-1]), flush=True)
    total = sum((Counter(row["points"]) for row in rows), Counter())
    write_json(
        ROOT / "docs" / "kills.json",
        {"seconds": round(time.time() - begin), "kills": sum(total.values()), "points": dict(total), "methods": rows},
    )
    wrong = [row["method"] for row in rows if row["different"]]
    print(f"{sum(total.values())} kills at {len(total)} points of {len(rows)} methods; different: {wrong or 'none'}")
    return 1 if wrong else 0


def catalogue(seed: int, afresh: bool) -> int:
    """Try every entry; the exit code is 1 when one ended otherwise, could not be run or had no gradient."""
    import kills_catalogue

    page = ROOT / "docs" / "kills_catalogue.json"
    known = {} if afresh or not page.exists() else json.loads(page.read_text())["entries"]
    with tempfile.TemporaryDirectory() as folder:
        kills_catalogue.warm(Path(folder))
    for name in kills_catalogue.names():
        if name in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                known[name] = kills_catalogue.tried(name, Path(folder), seed)
            except AssertionError as error:
                known[name] = {"error": str(error)[-400:]}
        print(name, json.dumps(known[name]), flush=True)
        write_json(page, {**counted(known), "entries": known})
    wrong = [name for name, row in known.items() if not good(row)]
    print(f"{len(known)} entries; different, without gradient or not run: {wrong or 'none'}")
    return 1 if wrong else 0


def good(row: dict[str, Any]) -> bool:
    """Whether an entry was killed in a run with gradients and ended with the same bits."""
    return "error" not in row and bool(row["kills"]) and not row["different"] and row["steps_with_gradient"] > 0


def counted(known: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Return how many entries were tried, killed, had gradients, and ended otherwise."""
    rows = [row for row in known.values() if "error" not in row]
    return {
        "tried": len(known),
        "kills": sum(len(row["kills"]) for row in rows),
        "with_gradient": sum(row["steps_with_gradient"] > 0 for row in rows),
        "with_optimizer_state": sum(row["optimizer_tensors"] > 0 for row in rows),
        "different": sum(bool(row["different"]) for row in rows),
        "not_run": len(known) - len(rows),
    }


def tried(name: str, count: int, seed: int) -> dict[str, object]:
    """Kill one run of a method `count` times; what came and what differed at its end."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        config, arrivals, seconds = kills.run_whole(name, home)
        plan = kills.moments(arrivals, random.Random(f"{seed}/{name}"), count, seconds)
        came, folders = kills.run_killed(config, home, plan)
        different = kills.differences(home, folders)
    points = Counter(moment.point for moment in came)
    return {"method": name, "kills": len(came), "points": dict(points), "different": different}


if __name__ == "__main__":
    sys.exit(main())
