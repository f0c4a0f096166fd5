"""Runs on several processes (FSDP2): equality with one process, checkpoints, kills and other faults.

Everything is run with gloo on the CPU of this machine; what was found is written to docs/fsdp.json, and
docs/fsdp.md sums it up. `python scripts/fsdp.py [steps] [runs] [resumes] [kills] [faults]` runs some sections only, and
leaves what is recorded of the others.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import rank_runs  # noqa: E402
from ranks import run_on_ranks  # noqa: E402

Found = tuple[str, Any]
"""What was tried, and what came of it."""
RECORD = ROOT / "docs" / "fsdp.json"
CASES = (
    *("grpo", "dapo", "dr_grpo", "grpo@nemo_rl", "intellect2", "ppo", "clip_cov", "gvpo"),
    *("grpo+lora", "ppo+lora", "grpo+anew", "clip_cov+anew"),
    *(f"grpo:{name}" for name in ("adadelta", "adagrad", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop")),
    *("grpo:rprop", "grpo:sgd"),
)
KILLS = (
    *("1 passes 8 kill", "1 part written 3 kill", "0 checkpoint begins 3 kill"),
    *("0 gradient 8 kill", "1 clip 5 kill", "1 step 6 kill", "0 step 9 kill", "1 sampling 3 kill"),
    *("1 weights to samplers 4 kill", "1 checkpoint begins 2 kill", "0 checkpoint whole 2 kill", "0 metrics 7 kill"),
)
FAULTS = (*("1 passes 8 memory", "1 checkpoint begins 3 full", "1 passes 8 stop", "1 passes 8 slow"),)


def steps(folder: Path) -> Iterator[Found]:
    """Optimiser steps on 2 and 4 ranks beside those of one process."""
    script = ROOT / "tests" / "support" / "rank_steps.py"
    for ranks in (2, 4):
        said = run_on_ranks(script, ranks, *CASES, timeout=3000)
        yield str(ranks), json.loads(said.splitlines()[-1])["found"]


def runs(folder: Path) -> Iterator[Found]:
    """Whole runs on 1, 2 and 4 ranks."""
    config = rank_runs.write_config(folder)
    for ranks in (1, 2, 4):
        rank_runs.train_on(ranks, config, folder / f"r{ranks}", "-q")
        if ranks > 1:
            yield str(ranks), rank_runs.apart(folder / "r1", folder / f"r{ranks}")


def resumes(folder: Path) -> Iterator[Found]:
    """Runs begun on one number of ranks and ended on another."""
    config = rank_runs.write_config(folder)
    rank_runs.train_on(1, config, folder / "whole", "-q")
    for first, then in ((1, 2), (2, 4), (2, 1)):
        run = folder / f"r{first}{then}"
        codes, said = rank_runs.on_ranks(first, config, run, "-q", fault="0 metrics 7 kill")
        assert codes[0] == -9, said
        rank_runs.train_on(then, config, run, "--resume", "-q")
        yield f"{first} → {then}", rank_runs.apart(folder / "whole", run)


def kills(folder: Path) -> Iterator[Found]:
    """Ranks killed at points of the code; the resumed run is held against a whole one, byte for byte."""
    config = rank_runs.write_config(folder)
    rank_runs.train_on(2, config, folder / "whole", "-q")
    whole = rank_runs.evidence(folder / "whole")
    for number, fault in enumerate(KILLS):
        run = folder / f"k{number}"
        codes, said = rank_runs.on_ranks(2, config, run, "-q", fault=fault)
        again, _ = rank_runs.on_ranks(2, config, run, "--resume", "-q")
        end = rank_runs.evidence(run) if again == [0, 0] else {}
        different = [name for name, value in whole.items() if end.get(name) != value]
        yield fault, {"codes": codes, "said": _words(said), "resumed": again, "different": different}


def faults(folder: Path) -> Iterator[Found]:
    """Ranks that fail, hang or are slow, and a disk that is full for one of them."""
    config = rank_runs.write_config(folder)
    for number, fault in enumerate(FAULTS):
        begun = time.monotonic()
        codes, said = rank_runs.on_ranks(2, config, folder / f"f{number}", "-q", fault=fault)
        seconds = round(time.monotonic() - begun)
        halves = [path.name for path in (folder / f"f{number}" / "checkpoints").glob(".*")]
        yield fault, {"codes": codes, "seconds": seconds, "said": _words(said), "halves": halves}


def _words(said: str) -> str:
    """Return the lines of errors."""
    return " ".join(line for line in said.splitlines() if line.startswith(("error", "rank")))


SECTIONS: dict[str, Callable[[Path], Iterator[Found]]] = {
    each.__name__: each for each in (steps, runs, resumes, kills, faults)
}


def main(names: list[str]) -> None:
    """Run sections, and record each thing that they find as it is found."""
    for name in names or list(SECTIONS):
        with tempfile.TemporaryDirectory() as folder:
            for key, value in SECTIONS[name](Path(folder)):
                record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
                record.setdefault(name, {})[key] = value
                RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
                print(name, key, value, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
