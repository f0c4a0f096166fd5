"""A queue of runs: the order in which they begin, each once, and what becomes of a process that is killed."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from pooled_runs import RunQueue, leave_numbers


def noted(path: Path, words: str, seconds: float = 0.0) -> int:
    time.sleep(seconds)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{words}\n")
    return os.getpid()


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refused() -> None:
    raise ValueError("refused")


def test_the_lowest_rank_begins_next_and_each_run_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "order"
    with RunQueue(1) as queue:
        first = queue.submit(0, "first", noted, path, "first", 1.0)
        while not first.running():
            time.sleep(0.01)
        late, soon = (queue.submit(rank, f"{rank}", noted, path, f"{rank}") for rank in (2, 1))
        urgent = queue.submit(3, "urgent", noted, path, "urgent")
        assert queue.submit(0, "urgent", noted, path, "urgent") is urgent, "its lowest rank counts"
        pids = {each.result(60) for each in (first, late, soon, urgent)}
    assert path.read_text().split() == ["first", "urgent", "1", "2"]
    assert len(pids) == 1, "a process makes many runs"
    assert pids != {os.getpid()}


def test_a_process_that_is_killed_fails_its_run_alone_and_is_replaced(tmp_path: Path) -> None:
    with RunQueue(1) as queue:
        lost, wrong = queue.submit(0, "a", killed), queue.submit(1, "b", refused)
        after = queue.submit(2, "c", noted, tmp_path / "order", "after")
        with pytest.raises(BrokenProcessPool):
            lost.result(60)
        with pytest.raises(ValueError, match="refused"):
            wrong.result(60)
        assert after.result(60) != os.getpid()


def test_of_a_finished_run_the_numbers_are_left(tmp_path: Path) -> None:
    for name in ("checkpoints", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "summary.json").touch()
    leave_numbers(tmp_path, ("checkpoints",))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "summary.json"]
    leave_numbers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
