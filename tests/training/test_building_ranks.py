"""A rank that dies before the first step, as the model is built: the others end at once and say which one, and why."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rank_runs
from grouprl.processes.roll_call import WAIT

SECONDS = 100
"""Within which everything has ended, on a slow machine that imports torch for each process."""
GONE = "rank 1 of 2 is gone: its process has ended"
ANEW = "continue with --resume, or begin anew if there is none yet"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("1 building 1 kill", (GONE, ANEW, "rank 1 was ended by SIGKILL")),
        ("0 building 1 kill", ("rank 0 was ended by SIGKILL", ANEW)),
        ("1 building 1 memory", ("rank 1 of 2 failed: out of memory. MemoryError", ANEW)),
        ("1 built 1 kill", (GONE, ANEW, "rank 1 was ended by SIGKILL")),
    ],
)
def test_a_rank_that_dies_as_the_model_is_built_is_named(fault: str, words: tuple[str, ...], tmp_path: Path) -> None:
    config, begun = rank_runs.write_config(tmp_path), time.monotonic()
    code, said = rank_runs.launch(2, config, tmp_path / "run", "-q", fault=fault)
    assert (code, [each for each in words if each not in said]) == (3, []), said
    assert time.monotonic() - begun < SECONDS
    if fault == "1 built 1 kill":
        rank_runs.train_on(2, config, tmp_path / "run", "-q")
        rank_runs.train_on(2, config, tmp_path / "whole", "-q")
        assert rank_runs.evidence(tmp_path / "run") == rank_runs.evidence(tmp_path / "whole"), "byte for byte"


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_ends_with_a_rank_that_dies_as_the_model_is_built(rank: int, tmp_path: Path) -> None:
    """Its own table says which one; it may end rank 0 before that has said it."""
    config, begun = rank_runs.write_config(tmp_path), time.monotonic()
    code, said = rank_runs.torchrun(2, config, tmp_path / "run", "-q", fault=f"{rank} building 1 kill")
    cause = said.partition("Root Cause")[2]
    assert (code, f"rank      : {rank}" in cause, "Signal 9 (SIGKILL)" in cause) == (1, True, True), said
    assert time.monotonic() - begun < SECONDS


EARLY = """import os
if os.environ.get("RANK") == "1" and "WORLD_SIZE" in os.environ:
    {}
"""
"""A module that Python imports as it starts, before grouprl: rank 1 ends in it."""


@pytest.mark.parametrize(
    ("end", "words", "seconds"),
    [
        ("os.kill(os.getpid(), 9)", "rank 1 was ended by SIGKILL", 25),
        ("os._exit(137)", "rank 1 ended with exit code 137", 45),
    ],
)
def test_a_rank_that_dies_before_the_ranks_have_met_is_named(
    end: str, words: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would wait for it for five minutes."""
    config = rank_runs.write_config(tmp_path)
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "sitecustomize.py").write_text(EARLY.format(end))
    monkeypatch.syspath_prepend(tmp_path / "early")
    begun = time.monotonic()
    code, said = rank_runs.launch(3, config, tmp_path / "run", "-q")
    assert (code, words in said, ANEW in said) == (3, True, True), said
    assert time.monotonic() - begun < seconds


QUICK = """from grouprl.policy.sharded import ranks
ranks.LATE = 2.0
"""
"""A plugin that lets a rank wait for an answer for seconds, not for minutes."""


def test_a_rank_does_not_wait_forever_for_what_is_not_rank_0(tmp_path: Path) -> None:
    """Its port is another program's, which takes connections and says nothing."""
    (tmp_path / "sitecustomize.py").write_text(QUICK)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "1", "WORLD_SIZE": "2"}
        paths = os.pathsep.join([str(tmp_path), *sys.path])
        line = rank_runs.command(rank_runs.write_config(tmp_path), tmp_path / "run", "-q")
        environment = {**os.environ, **place, WAIT: "3", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        found = subprocess.run(line, env=environment, text=True, capture_output=True, timeout=SECONDS)
    assert found.returncode == 3, found.stderr
    assert f"127.0.0.1:{port} does not answer as rank 0" in found.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_rank_that_waits_for_the_others_is_ended_by_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    """Nobody has a run to end in order yet, and the others may never come."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
        mine = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "1", "WORLD_SIZE": "2"}
        line = rank_runs.command(rank_runs.write_config(tmp_path), tmp_path / "run", "-q")
        environment = {**os.environ, **mine, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        rank = subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL)
        place.settimeout(SECONDS)
        try:
            with place.accept()[0]:  # it is waiting
                rank.send_signal(number)
                assert rank.wait(20) == -number
        finally:
            rank.kill()
            rank.wait()
