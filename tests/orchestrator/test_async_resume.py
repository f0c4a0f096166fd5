"""Asynchronous runs killed at any moment: nothing is trained on twice or lost, nothing too old, nobody left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from async_runs import alive, warm_here
from grouprl.storage.checkpoint import load
from killed_runs import PRELOADED, finished, log_of
from killed_runs import child as trainer

STEPS, PROMPTS, GROUP, BOUND = 10, 4, 4, 2
WARM = 60 * 32
"""Prompts of the warm-up, which come first in the stream."""


def small_run() -> dict[str, Any]:
    return {
        "task": {"name": "reverse", "length": 2},
        "data": {"prompts": 24},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": "decoupled_ppo",
        "steps": STEPS,
        "seed": 3,
        "warmup": {"steps": 60, "batch": 32, "warmup_steps": 2, "lr": 1e-2},
        "batch": {"prompts": PROMPTS, "group_size": GROUP},
        "optim": {"lr": 1e-3, "warmup_steps": 2},
        "eval": {"every": 0, "final_prompts": 8},
        "run": {"checkpoint_every": 3, "threads": 1, "async_steps": BOUND, "keep": 100},
    }


def launch(config: Path, folder: Path, *, resume: bool, warm: bool) -> BaseProcess:
    """Start or resume a run in a process that has its imports done; with `warm` its sampler is forked from it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_trainer, args=(config, folder, resume, warm))
    process.start()
    return process


def _trainer(config: Path, folder: Path, resume: bool, warm: bool) -> None:
    if warm:
        warm_here()
    trainer(config, folder, resume, log_of(folder))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(small_run()))
    return path


def children(process: BaseProcess) -> set[int]:
    """The sampler of a running trainer: it starts no other process."""
    mine = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == process.pid:
            mine.add(int(path.parent.name))
    return mine


def test_killed_at_random_moments_and_interrupted(config: Path, tmp_path: Path) -> None:
    """Three times SIGKILL, then Ctrl-C, then to the end: each time with a sampler that ends with its trainer."""
    folder, rng = tmp_path / "run", random.Random(7)
    process, struck, seen, code = launch(config, folder, resume=False, warm=False), 0, set(), 0
    for strike in (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGINT):
        if not wait_for_a_step(process, folder, rng):
            break
        mine = children(process)
        assert process.pid is not None
        os.kill(process.pid, strike)
        process.join(timeout=120)
        assert not any(map(alive, mine)), "the sampler ends with its trainer"
        seen |= mine
        if process.exitcode == 130:
            assert "a checkpoint is written" in log_of(folder).read_text()
        elif strike == signal.SIGINT:
            code = process.exitcode or 0
            break  # it came too late to interrupt a step: the run was over, or closing
        struck += 1
        process = launch(config, folder, resume=True, warm=True)
    output = " ".join(finished(process, folder, code).split())
    assert struck >= 3
    assert seen, "a trainer was killed while its sampler ran"
    all_made = f"training, {STEPS} steps ── evaluation" in output  # the interruption came after the last step
    assert (
        struck == 3
        or all_made
        or "prompts were in flight when the run was interrupted; they are sampled again" in output
    )
    check_history(folder)


def wait_for_a_step(process: BaseProcess, folder: Path, rng: random.Random) -> bool:
    """Wait until the run has stored the rollouts of a new step and a random moment has passed; False if it ended."""

    def stored() -> set[tuple[str, float]]:
        return {(path.name, path.stat().st_mtime) for path in (folder / "rollouts").glob("step-*.parquet")}

    before, after = stored(), rng.uniform(0, 0.3)
    while process.is_alive():
        try:
            if stored() - before:
                time.sleep(after)
                return process.is_alive()
        except FileNotFoundError:  # taken back while we looked
            continue
        time.sleep(0.002)
    return False


def check_history(folder: Path) -> None:
    """Every prompt was trained on exactly once, whole, in order, and not too old; checkpoints say what waits."""
    rows = [row for path in sorted((folder / "rollouts").iterdir()) for row in pq.read_table(path).to_pylist()]
    steps = [int(path.stem[5:]) for path in sorted((folder / "rollouts").iterdir())]
    assert steps == list(range(1, STEPS + 1))
    assert [row["group"] for row in rows] == [WARM + i // GROUP for i in range(STEPS * PROMPTS * GROUP)]
    assert [row["sample"] for row in rows] == list(range(GROUP)) * (STEPS * PROMPTS)
    for row in rows:
        assert 0 <= row["step"] - 1 - min(row["version"]) <= BOUND
        assert max(row["version"]) <= row["step"] - 1
        assert row["used"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["phase"] == "train"] == list(range(1, STEPS + 1))
    for path in sorted((folder / "checkpoints").glob("step-*")):
        step = int(path.name[5:])
        waiting = [request["ordinal"] for request in load(path).data["in_flight"]["requests"]]
        first = WARM + step * PROMPTS
        assert waiting == list(range(first, first + len(waiting))), "what was requested and not trained on is stored"
        assert len(waiting) <= (BOUND + 1) * PROMPTS
