"""Signals to a run of its own process, while the model is at work: it ends soon, and without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CONFIG = """
task: {name: reverse, length: 24}
model: {tiny: {hidden: 512, layers: 6, heads: 4, intermediate: 1024}}
steps: 3
sampling: {max_new_tokens: 400}
batch: {prompts: 64, group_size: 16}
eval: {every: 0, prompts: 1, final_prompts: 1}
run: {threads: 1, folder: out}
"""
"""A step takes minutes: a thousand completions of a model of ten million parameters."""
SOON = 30.0
"""Seconds; a model pass that is going on is not cut short, and other processes share the machine."""


def begun(folder: Path) -> subprocess.Popen:
    (folder / "run.yaml").write_text(CONFIG)
    run = subprocess.Popen(
        [sys.executable, "-u", "-m", "grouprl", "train", "run.yaml"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.stdout is not None
    for line in run.stdout:
        if "training, 3 steps" in line:
            time.sleep(2.0)  # into the rollout
            return run
    raise AssertionError("the run ended before it was trained")


@pytest.mark.parametrize(("signals", "announced"), [((2, 2), "Press Ctrl-C again"), ((15,), "in 5 seconds")])
def test_a_run_ends_soon_whatever_is_sampled(signals: tuple[int, ...], announced: str, tmp_path: Path) -> None:
    run = begun(tmp_path)
    sent = time.monotonic()
    for number in signals:
        run.send_signal(signal.Signals(number))
        time.sleep(1.0)
    try:
        said, _ = run.communicate(timeout=SOON)
    finally:
        run.kill()
    # a step that SIGTERM has cut short ends as SIGTERM ends a process, which a shell shows as 143
    assert run.returncode == (130 if signal.SIGINT in signals else -signal.SIGTERM), said
    assert time.monotonic() - sent < SOON + len(signals)
    assert announced in " ".join(said.split())
    assert "Traceback" not in said
    assert (tmp_path / "out" / "config.yaml").is_file()  # and it can be resumed
