"""Runs under random faults, at length: rewards and environments that fail, signals, full disks, damaged checkpoints.

Writes docs/soak.json. `python scripts/soak.py --steps 1500 --episode-steps 500`
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import soak  # noqa: E402
from grouprl.train.files import write_json  # noqa: E402

MOST_GROWTH = 16.0
"""MiB by which the resident memory may grow over the second half of the undisturbed stretch."""


def main() -> int:
    """Soak both kinds of runs; the exit code is 1 when memory grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--episode-steps", type=int, default=500)
    parser.add_argument("--every", type=int, default=25, help="steps between faults from outside, about")
    parser.add_argument("--calm", type=float, default=0.4, help="last share of the steps without faults from outside")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, steps in (("answers", options.steps), ("episodes", options.episode_steps)):
            if steps:
                soaked = soak.soak(Path(folder), kind, steps, every=options.every, calm=options.calm, seed=options.seed)
                found[kind] = soaked.record()
                print(json.dumps({kind: found[kind]}), flush=True)
    write_json(ROOT / "docs" / "soak.json", found)
    return int(any(record["growth_mb"] > MOST_GROWTH for record in found.values()))


if __name__ == "__main__":
    sys.exit(main())
