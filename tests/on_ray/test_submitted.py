"""Runs that are handed to a Ray by `ray job submit`: they end like others, and a job that is stopped continues."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from learner_runs import same_results, slow_config, started, steps_done
from placed_runs import closed_account

pytest.importorskip("ray", reason="Ray is not installed: make ray")
pytest.importorskip("aiohttp_cors", reason="Ray's server of jobs is not installed (ray[default]): make ray")
BIN = Path(sys.executable).parent
RUN = [sys.executable, "-m", "grouprl", "train"]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def ray_of_jobs() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """A Ray of this machine with a server of jobs; yields the command `ray job`."""
    port, jobs = free_port(), free_port()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # Ray's sockets want a short path
        own = {**os.environ, "RAY_ADDRESS": f"http://127.0.0.1:{jobs}", "RAY_memory_monitor_refresh_ms": "0"}

        def ray(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([BIN / "ray", *words], env=own, capture_output=True, text=True, timeout=300)

        places = ["--port", str(port), "--dashboard-port", str(jobs), "--temp-dir", folder]
        head = {**own, "RAY_ADDRESS": ""}
        subprocess.run([BIN / "ray", "start", "--head", "--num-cpus", "6", *places], env=head, check=True, timeout=120)
        try:
            yield lambda *words: ray("job", *words)
        finally:
            ray("stop", "--grace-period", "5")


def test_a_job_ends_with_the_bytes_of_a_run_and_one_that_was_stopped_continues(ray_of_jobs, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    assert started(here, slow_config(here, {"learners": 2})).wait() == 0
    (there / "run.yaml").write_text(yaml.safe_dump(slow_config(there, {"ray": "auto", "learners": 2})))
    work = [*RUN, "run.yaml", "--folder", str(there / "run")]
    said = ray_of_jobs("submit", "--no-wait", "--submission-id", "first", "--working-dir", str(there), "--", *work)
    assert said.returncode == 0, said.stdout + said.stderr
    end = time.monotonic() + 200
    while steps_done(there) < 2:
        assert time.monotonic() < end, ray_of_jobs("logs", "first").stdout
        time.sleep(0.05)
    ray_of_jobs("stop", "first")
    assert "Continue with: grouprl train" in ray_of_jobs("logs", "first").stdout
    again = ["submit", "--submission-id", "second", "--working-dir", str(there), "--"]
    said = ray_of_jobs(*again, *RUN, str(there / "run"), "--resume")
    assert "'second' succeeded" in said.stdout + said.stderr, said.stdout + said.stderr
    closed_account(there / "run")
    same_results(here / "run", there / "run")
