"""Kill runs of many methods at many moments, go on after each, and compare what they leave with uninterrupted runs.

Writes docs/kills.json. `python scripts/kills.py --kills 10 --seed 0`
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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import kills  # noqa: E402
from grouprl.storage.run_folder import write_json  # noqa: E402


def main() -> int:
    """Run all methods; the exit code is 1 when a killed run ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="kills planned per method")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=list(kills.METHODS))
    options = parser.parse_args()
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
