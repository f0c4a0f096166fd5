"""Processes that were started differently, or not at all, are no ranks of one run: it ends before it begins."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import yaml

import rank_runs
from grouprl.processes.roll_call import WAIT
from ranks import free_port

SECONDS = 100
"""Within which everything has ended, on a slow machine that imports torch for each process."""
UNLIKE = """import importlib.metadata, os
if os.environ.get("RANK") == "1":
    known = importlib.metadata.version
    importlib.metadata.version = lambda name: "0.0.1" if name == "transformers" else known(name)
"""
"""A plugin with which rank 1 has another version of a library."""
ROW = '{{"prompt": "1+1=", "answer": "{}"}}\n'


def meet(tmp_path: Path, *lines: list[str], count: int, wait: str) -> tuple[list[int], list[str]]:
    """Start the first of `count` ranks by these command lines; return their exit codes and what they said."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count), WAIT: wait}
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    shared = {**os.environ, **place, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "grouprl"]
    started = [
        subprocess.Popen([*command, *line], env={**shared, "RANK": str(rank)}, text=True, stderr=subprocess.PIPE)
        for rank, line in enumerate(lines)
    ]
    said = [rank.communicate(timeout=SECONDS)[1] for rank in started]
    return [rank.returncode for rank in started], said


def test_a_rank_with_other_settings_data_and_versions_is_refused(tmp_path: Path) -> None:
    """Each machine has the file in a folder of its own."""
    lines = []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        (folder / "rows.jsonl").write_text(ROW.format(rank))
        settings = {"task": "jsonl:rows.jsonl", "model": "tiny", "reward": {"function": "exact_match"}, "steps": 1}
        (folder / "run.yaml").write_text(yaml.safe_dump(settings))
        lines.append(["train", str(folder / "run.yaml"), "--seed", str(rank), "--folder", str(tmp_path / "run")])
    (tmp_path / "sitecustomize.py").write_text(UNLIKE)
    codes, said = meet(tmp_path, *lines, count=2, wait="60")
    assert codes == [2, 0], said
    found = " ".join(said[0].split())
    assert "rank 1 of 2 was started differently: seed is 1 there and 0 on rank 0; the contents of task" in found
    assert "the version of transformers is 0.0.1 there and" in found
    assert not (tmp_path / "run").exists()
    assert said[1] == "", "rank 0 has said it"


def test_a_rank_that_does_not_come_is_named_soon_and_ends_the_run(tmp_path: Path) -> None:
    line = ["train", str(rank_runs.write_config(tmp_path)), "--folder", str(tmp_path / "run"), "-q"]
    codes, said = meet(tmp_path, line, line, count=4, wait="6")
    assert codes == [3, 0], said
    assert "rank 0 waits for ranks 2-3 of 4 (5 s, at most 6 s)" in said[0]
    assert f"ranks 2-3 of 4 did not come within 6 s ({WAIT})" in " ".join(said[0].split())
    assert not (tmp_path / "run").exists()


def test_a_configuration_that_is_refused_is_so_on_each_rank(tmp_path: Path) -> None:
    """No rank waits for the others for minutes."""
    line = ["train", "addition", "--set", "optim.lrr=1"]
    begun = time.monotonic()
    codes, said = meet(tmp_path, line, line, count=2, wait="300")
    assert codes == [2, 2], said
    assert all("unknown key 'optim.lrr'" in each for each in said)
    assert time.monotonic() - begun < 120
