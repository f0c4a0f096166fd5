"""Runs under random faults, at length: rewards and environments that fail, signals, full disks, damaged checkpoints.

Writes docs/soak.json. `python scripts/soak.py --steps 1000 --episode-steps 400 --minutes 60`
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import soak  # noqa: E402
from grouprl.storage.run_folder import write_json  # noqa: E402

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
    parser.add_argument("--minutes", type=float, default=0.0, help="go on with shorter runs until so many have passed")
    options = parser.parse_args()
    found, begin = {}, time.time()
    for seed, kind, steps in runs(options.steps, options.episode_steps, options.seed):
        if seed > options.seed and time.time() - begin >= 60 * options.minutes:
            break
        name = kind if seed == options.seed else f"{kind}, seed {seed}"
        with tempfile.TemporaryDirectory() as folder:
            soaked = soak.soak(Path(folder), kind, steps, every=options.every, calm=options.calm, seed=seed)
        found[name] = soaked.record()
        print(json.dumps({name: found[name]}), flush=True)
        write_json(ROOT / "docs" / "soak.json", found)
    return int(any(record["growth_mb"] > MOST_GROWTH for record in found.values()))


def runs(steps: int, episode_steps: int, seed: int) -> Iterator[tuple[int, str, int]]:
    """Yield (seed, kind, steps): both kinds at full length, then a quarter of it with the next seeds without end."""
    for more in itertools.count(seed):
        for kind, length in (("answers", steps), ("episodes", episode_steps)):
            if length:
                yield more, kind, length if more == seed else -(-length // 4)


if __name__ == "__main__":
    sys.exit(main())
