"""Runs on several processes (FSDP2): equality with one process, checkpoints, kills and other faults, a real model.

Everything is run with gloo on the CPU of this machine; what was found is written to docs/fsdp.json, and
docs/fsdp_record.md shows it. `python scripts/fsdp.py [steps] [runs] [resumes] [kills] [faults] [real]` runs some
sections only, and leaves what is recorded of the others.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import rank_runs  # noqa: E402
from ranks import run_on_ranks  # noqa: E402

RECORD = ROOT / "docs" / "fsdp.json"
CASES = (
    *("grpo", "dapo", "dr_grpo", "grpo@nemo_rl", "intellect2", "ppo", "clip_cov", "gvpo"),
    *("grpo+lora", "ppo+lora", "grpo+anew", "clip_cov+anew"),
    *(f"grpo:{name}" for name in ("adadelta", "adagrad", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop")),
    *("grpo:rprop", "grpo:sgd"),
)
KILLS = (
    *("1 passes 3 kill", "0 gradient 4 kill", "1 clip 5 kill", "1 step 6 kill", "0 step 5 kill", "1 sampling 3 kill"),
    *("1 weights to samplers 4 kill", "1 checkpoint begins 2 kill", "0 checkpoint begins 2 kill"),
    *("1 part written 2 kill", "0 checkpoint whole 2 kill", "0 metrics 6 kill"),
)
FAULTS = (
    *("1 passes 3 memory", "1 part written 2 full", "0 part written 2 full", "1 passes 3 stop", "1 passes 3 slow"),
)


def steps(folder: Path) -> dict[str, Any]:
    """Optimiser steps on 2 and 4 ranks beside those of one process."""
    script = ROOT / "tests" / "support" / "rank_steps.py"
    found = {n: json.loads(run_on_ranks(script, n, *CASES, timeout=1500).splitlines()[-1])["found"] for n in (2, 4)}
    return {str(n): each for n, each in found.items()}


def runs(folder: Path) -> dict[str, Any]:
    """Whole runs on 1, 2 and 4 ranks."""
    config = rank_runs.write_config(folder)
    for ranks in (1, 2, 4):
        rank_runs.train_on(ranks, config, folder / f"r{ranks}", "-q", timeout=1500)
    return {str(ranks): rank_runs.apart(folder / "r1", folder / f"r{ranks}") for ranks in (2, 4)}


def resumes(folder: Path) -> dict[str, Any]:
    """Runs begun on one number of ranks and ended on another."""
    config = rank_runs.write_config(folder)
    rank_runs.train_on(1, config, folder / "whole", "-q")
    found = {}
    for first, then in ((1, 2), (2, 1), (2, 4)):
        run = folder / f"r{first}{then}"
        code, said = rank_runs.launch(first, config, run, "-q", fault="0 metrics 7 kill")
        assert code == 3, said
        rank_runs.train_on(then, config, run, "--resume", "-q")
        found[f"{first} → {then}"] = rank_runs.apart(folder / "whole", run)
    return found


def kills(folder: Path) -> dict[str, Any]:
    """Ranks killed at points of the code; the resumed run is held against a whole one, byte for byte."""
    config = rank_runs.write_config(folder)
    rank_runs.train_on(2, config, folder / "whole", "-q")
    whole, found = rank_runs.evidence(folder / "whole"), {}
    for number, fault in enumerate(KILLS):
        run = folder / f"k{number}"
        code, said = rank_runs.launch(2, config, run, "-q", fault=fault)
        again, _ = rank_runs.launch(2, config, run, "--resume", "-q")
        end = rank_runs.evidence(run) if again == 0 else {}
        different = [name for name, value in whole.items() if end.get(name) != value]
        found[fault] = {"code": code, "said": _words(said), "resumed": again, "different": different}
        print(fault, found[fault], flush=True)
    return found


def faults(folder: Path) -> dict[str, Any]:
    """Ranks that fail, hang or are slow, and a disk that is full for one of them."""
    config, found = rank_runs.write_config(folder), {}
    for number, fault in enumerate(FAULTS):
        begun = time.monotonic()
        code, said = rank_runs.launch(2, config, folder / f"f{number}", "-q", fault=fault)
        seconds = round(time.monotonic() - begun)
        left = [path.name for path in (folder / f"f{number}" / "checkpoints").glob(".*")]
        found[fault] = {"code": code, "seconds": seconds, "said": _words(said), "halves": left}
        print(fault, found[fault], flush=True)
    return found


def _words(said: str) -> str:
    """Return the lines of errors."""
    return " ".join(line for line in said.splitlines() if line.startswith(("error", "rank")))


SECTIONS: dict[str, Callable[[Path], dict[str, Any]]] = {
    each.__name__: each for each in (steps, runs, resumes, kills, faults)
}


def main(names: list[str]) -> None:
    """Run sections and record what they found."""
    for name in names or list(SECTIONS):
        with tempfile.TemporaryDirectory() as folder:
            found = SECTIONS[name](Path(folder))
        record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
        RECORD.write_text(json.dumps({**record, name: found}, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
        print(name, "recorded", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
