"""M-GRPO between trainers: two real processes, one folder, kills; every row is trained on once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from episode_runs import launch, records, run_config
from fake_context import FakeContext
from grouprl.algorithms.augment.papers.exchange import Exchange, SendCalled, awaited, read, with_outcome, write
from grouprl.algorithms.buffer.papers.take_called import TakeCalled
from grouprl.algorithms.part import RunFacts
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.plan.plan import plan
from killed_runs import evidence

STEPS = 6
CALLER: dict[str, Any] = {"base": "m_grpo", "augment": [{"part": "align_calls", "calls": 1}, {"part": "send_called"}]}
CALLED: dict[str, Any] = {"base": "m_grpo", "augment": [], "buffer": {"part": "take_called"}}


def settings(folder: Path, side: str, **changes: Any) -> dict[str, Any]:
    """A run of a small team: its planner, or its worker."""
    method = yaml.safe_load(yaml.safe_dump(CALLER if side == "caller" else CALLED))
    part = method["augment"][-1] if side == "caller" else method["buffer"]
    part |= {"folder": str(folder / "exchange"), "wait": 120.0, **changes}
    return run_config(
        task={"name": "team", "terms": 2},
        model={"name": "tiny", "agents": "separate", "tiny": {"hidden": 16, "layers": 1, "heads": 2}},
        method=method,
        steps=STEPS,
        warmup={"steps": 80, "batch": 16, "lr": 1e-2},
        batch={"prompts": 4, "group_size": 4},
        eval={"every": 0, "prompts": 4, "final_prompts": 4, "samples": 1},
        run={"threads": 1, "checkpoint_every": 2, "keep": 9, "check_model": False},
    )


class Trainer:
    """A trainer in a process of its own, begun or gone on with."""

    def __init__(self, folder: Path, side: str, **changes: Any) -> None:
        self.folder, self.side, self.run = folder, side, folder / side
        self.config = folder / f"{side}.yaml"
        self.config.write_text(yaml.safe_dump(settings(folder, side, **changes)))
        self.start()

    def start(self) -> None:
        begun = (self.run / "config.yaml").is_file()
        what = [str(self.run), "--resume"] if begun else [str(self.config), "--set", f"run.folder={self.run}"]
        command = [sys.executable, "-m", "grouprl.cli.app", "train", *what]
        with (self.folder / f"{self.side}.log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def finish(self) -> None:
        code = self.process.wait(timeout=200)
        assert code == 0, (self.folder / f"{self.side}.log").read_text()[-3000:]


def names(run: Path) -> Counter[tuple[Any, ...]]:
    """Rows that a run trained on, from its rollouts."""
    found: Counter[tuple[Any, ...]] = Counter()
    for file in sorted((run / "rollouts").glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            found[(row["prompt_id"], row["sample"], row["row"])] += 1
    return found


def until(true: Any) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_two_processes_that_are_killed_train_every_row_once(tmp_path: Path) -> None:
    """Both are killed and go on. What the worker ends with is what it ends with unbroken, on the same rows."""
    caller, called = Trainer(tmp_path, "caller", lag=2), Trainer(tmp_path, "called")
    exchange = Exchange(tmp_path / "exchange" / "agent-1")
    try:
        until(lambda: (exchange.newest or (0, None))[0] >= 3)
        called.kill()
        caller.kill()
        sent = {path.name: path.read_bytes() for path in exchange.folder.glob("rows-*")}
        assert 3 <= len(sent) < STEPS
        caller.start()
        time.sleep(1)
        called.start()
        caller.finish()
        called.finish()
    finally:
        caller.process.kill()
        called.process.kill()
    assert exchange.sent == STEPS
    assert all((exchange.folder / name).read_bytes() == content for name, content in sent.items())
    trained = names(tmp_path / "called")
    assert set(trained.values()) == {1}
    packed = [read(exchange.rows(step))["rows"] for step in range(STEPS)]
    assert sum(trained.values()) == sum(len(rows["texts"]) for rows in packed) > 0
    accounts = records(tmp_path / "caller", "train")
    assert sum(step.get("rows_sent", 0) for step in accounts) == sum(trained.values())
    assert {name for step in accounts for name in step if "rows_lost/" in name} <= {"rows_lost/augment"}
    lags = [step["exchange_lag"] for step in records(tmp_path / "caller", "train")]
    assert max(lags) <= 2
    assert exchange.newest is not None
    assert exchange.newest[0] == STEPS
    fresh = tmp_path / "fresh"
    shutil.copytree(exchange.folder, fresh / "exchange" / "agent-1")
    config = settings(fresh, "called")
    again = launch(fresh / "called", **config)
    assert evidence(again) == evidence(tmp_path / "called")


def test_who_finds_nothing_says_what_it_waits_for(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no rows came to .*rows-000000.pt within 0.3 s. Is the other trainer running"):
        launch(tmp_path / "called", **settings(tmp_path, "called", wait=0.3))
    with pytest.raises(RunError, match=r"no weights trained on 1 steps came to .* within 0.3 s"):
        launch(tmp_path / "caller", **settings(tmp_path, "caller", wait=0.3, lag=1))


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    Exchange(tmp_path / "exchange" / "agent-1").folder.mkdir(parents=True)
    Exchange(tmp_path / "exchange" / "agent-1").owner.write_text("somebody else's")
    with pytest.raises(InputError, match="holds rows of another run"):
        launch(tmp_path / "caller", **settings(tmp_path, "caller"))


def test_one_process_takes_the_rows_of_an_agent(tmp_path: Path) -> None:
    part, first, second = TakeCalled(folder=str(tmp_path)), FakeContext(), FakeContext()
    part._open(first)
    with pytest.raises(InputError, match="another process is taking the rows of agent 1"):
        part._open(second)


def test_weights_of_their_own_are_needed(tmp_path: Path) -> None:
    for side in ("caller", "called"):
        config = settings(tmp_path, side)
        config["model"]["agents"] = "shared"
        assert any("all agents share a model" in reason for reason in plan(parse_config(config)).refusals)
    assert plan(parse_config(settings(tmp_path, "caller"))).refusals == ()
    assert "the task has one agent" in SendCalled(folder="x").refuse(RunFacts(agents=1))[0]
    assert "no agent 2" in TakeCalled(folder="x", agent=2).refuse(RunFacts(agents=2))[0]


def test_files_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows-000000.pt"
    write(path, {"rows": None, "steps": 3})
    assert read(path) == {"rows": None, "steps": 3}
    assert list(tmp_path.iterdir()) == [path]
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(RunError, match="is damaged"):
        read(path)


def test_weights_before_the_newest_stay_for_who_reads_them(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    assert exchange.newest is None
    for trained in range(4):
        exchange.keep(trained, {"w": torch.tensor([float(trained)])})
    assert exchange.newest == (3, tmp_path / "weights-000003.pt")
    assert len(list(tmp_path.glob("weights-*"))) == 2


def test_waiting_ends_when_something_is_found() -> None:
    looks = iter([None, None, 7])
    assert awaited(lambda: next(looks), 5, "nothing") == 7


def test_called_rows_go_with_the_outcome_of_their_episode() -> None:
    context = FakeContext(completions=5)
    rows = context.sample(context.take(1))
    rows = rows.with_extras(agent_b=np.array([0, 1, 0, 1, 1]), keys__episode=np.array([0, 0, 1, 1, 2]))
    rows.scores.correct_b[:] = [True, False, False, True, True]
    assert with_outcome(rows).scores.correct_b.tolist() == [True, True, False, False, True]
