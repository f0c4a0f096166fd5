"""How an episode begins is asked in a process of its own: code that ends its process does not end the run."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import ending_envs
from grouprl.tasks import load_task
from grouprl.tasks.beginnings import Beginnings
from single_runs import launch

TASK = {"name": f"env:{ending_envs.__file__}:Ending", "turns": 1, "tokens": 2, "characters": "0123456789>end"}


def test_beginnings_that_end_their_process_are_empty() -> None:
    task = load_task(TASK)
    examples = [task.example("train", index) for index in range(24)]
    ways = [ending_envs.WAYS[each.columns["seed"] % len(ending_envs.WAYS)] for each in examples]
    assert {"exit", "signal", "raise", "garbage", "well"} == set(ways)
    assert [bool(each.prompt) for each in examples] == [way == "well" for way in ways]
    pids = {each.prompt for each in examples} - {""}
    assert f"{os.getpid()}>" not in pids
    assert [task.example("train", index).id for index in range(24)] == [each.id for each in examples]


def test_one_that_was_lost_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task(TASK)
    lost = next(i for i in range(99) if task.example("train", i).columns["seed"] % 8 == 0)
    known = Beginnings.of(task, 10.0)
    assert known is not None
    monkeypatch.setattr(known._stage, "call", lambda *_: pytest.fail("it was asked"))
    assert task.example("train", lost).prompt == ""


def test_its_process_ends_with_the_task() -> None:
    task = load_task(TASK)
    next(i for i in range(99) if task.example("train", i).prompt)
    known = Beginnings.of(task, 10.0)
    assert known is not None
    assert known._stage.started == 1
    del task
    gc.collect()
    assert known._stage.started == 0


def test_what_cannot_be_sent_is_asked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending_envs, "WAYS", ("well",))
    monkeypatch.setattr(Beginnings, "of", classmethod(lambda *_: None))
    task = load_task({**TASK, "name": "env:ending_envs:Ending"})
    assert task.example("train", 0).prompt == f"{os.getpid()}>"


def test_a_run_goes_on_where_some_prompts_end_their_process(tmp_path: Path) -> None:
    settings = {"reward": {"max_failed_fraction": 1.0}, "environment": {"workers": 2, "timeout": 30}}
    batch = {"prompts": 16, "group_size": 2}
    sizes = {"steps": 1, "batch": batch, "warmup": {"steps": 0}, "eval": {"every": 0, "final_prompts": 8}}
    folder = launch(tmp_path / "run", task=TASK, **sizes, **settings).folder
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    assert {"ok", "error"} == {row["status"] for row in rows}
