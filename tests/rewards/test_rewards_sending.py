"""Which rewards run in workers, how they get there, their self-test, and runs that score with them."""

from __future__ import annotations

import io
import json
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.config.sections import Reward as Settings
from grouprl.core.errors import InputError, RunError
from grouprl.core.importing import import_object
from grouprl.orchestrator.reward import open_reward, opened_reward
from grouprl.processes.parcel import CannotSend, pack, unpack
from grouprl.rewards import (
    combine,
    contains_answer_tag,
    exact_match,
    load_reward,
    math_equal,
    numeric_match,
    regex_format,
)
from grouprl.rewards.catalogue.worker_choice import harmless, in_workers
from grouprl.rewards.reward_workers import RewardWorkers
from grouprl.rewards.validation import VerdictReward
from grouprl.tasks import load_task
from grouprl.training.loop import train
from reward_processes import FILE, children, scores_of


def test_a_worker_that_is_replaced_has_the_code_that_the_run_began_with(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    path.write_text("import os\ndef f(completion):\n    return 1.0 if completion else os._exit(1)\n")
    workers = RewardWorkers(load_reward(f"{path}:f"), 1, timeout=5, memory_gb=2)
    path.write_text("def f(completion):\n    return 2.0\n")
    assert scores_of(workers, [""]).status_b.tolist() == ["error"]
    assert scores_of(workers, ["a"]).reward_b.tolist() == [1.0]
    workers.close()


PLACES = """
from grouprl.rewards import exact_match
from grouprl.tasks import Example, Task

class Judge:
    lock = __import__("threading").Lock()
    def __init__(self):
        self.lock = Judge.lock
    def __call__(self, completion):
        return 0.5
    def method(self, completion):
        return 0.25

judge = Judge()

def scaled(completion, by=1.0):
    return len(completion) * by

class Mine(Task):
    name = "mine"
    reward = staticmethod(scaled)
    def example(self, split, index):
        return Example(str(index), "?")
    def size(self, split):
        return 1
"""


def test_rewards_travel_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "places.py").write_text(PLACES)
    monkeypatch.chdir(tmp_path)
    combined = [{"name": "places.py:scaled", "by": 2.0}, {"name": "places:judge.method", "weight": 4.0}]
    try:
        for spec, expected in (
            ("places.py:judge", 0.5),
            ("places:judge", 0.5),
            ("./places.py:judge.method", 0.25),
            ("places:judge.method", 0.25),
            (combined, 5.0),
        ):
            with closing(RewardWorkers(load_reward(spec), 1, timeout=5, memory_gb=2)) as workers:
                assert scores_of(workers, ["ab"]).reward_b.tolist() == [expected]
        with opened_reward(Settings(workers=1), load_task("places.py:Mine")) as (reward, _):
            assert scores_of(reward, ["abc"]).reward_b.tolist() == [3.0]
    finally:
        sys.modules.pop("places", None)


def test_a_number_that_was_imported_is_no_other_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small numbers are the same object everywhere: those of a parcel must not be taken for what was imported."""
    (tmp_path / "numbered.py").write_text("three = 3\n")
    monkeypatch.chdir(tmp_path)
    assert import_object("numbered:three", "number") == 3
    Path("numbered.py").unlink()
    sys.modules.pop("numbered")
    reward = unpack(pack(partial(contains_answer_tag, answer=3), "reward"))
    assert isinstance(reward, partial)
    assert reward.keywords == {"answer": 3}


def test_what_cannot_be_sent_runs_here_with_a_note_or_is_refused() -> None:
    def local(completion: str) -> float:
        return 1.0

    for reward in (local, lambda completion: 1.0):
        found, note = in_workers(reward, "auto", timeout=1, memory_gb=2)
        assert found is reward
        assert "cannot be sent to a worker process" in note
        assert "reward.timeout does not hold" in note
        with pytest.raises(CannotSend, match="cannot be sent"):
            in_workers(reward, 1, timeout=1, memory_gb=2)
    assert in_workers(local, 0, timeout=1, memory_gb=2) == (local, "")


def test_a_reward_that_only_its_parent_can_import(tmp_path: Path) -> None:
    path = tmp_path / "picky.py"
    path.write_text(
        "import sys\nassert 'worker_main' not in sys.argv[0], 'not here'\ndef f(completion):\n    return 1.0\n"
    )
    reward = load_reward(f"{path}:f")
    with pytest.raises(CannotSend, match=r"could be started.*(?s:.)*not here"):
        in_workers(reward, 2, timeout=1, memory_gb=2)
    assert in_workers(reward, "auto", timeout=1, memory_gb=2)[0] is reward


def test_auto_keeps_what_always_ends_in_this_process() -> None:
    own = load_reward(f"{FILE}:moody")
    pattern = load_reward({"name": "regex_format", "pattern": "(a+)+b"})
    for reward in (exact_match, numeric_match, load_task("addition").reward, load_task("countdown").reward):
        assert harmless(reward)
    assert harmless(combine([("a", exact_match, 1.0), ("b", regex_format, 1.0)]))
    for reward in (own, math_equal, pattern, combine([("a", exact_match, 1.0), ("b", own, 1.0)])):
        assert not harmless(reward)
    assert in_workers(exact_match, "auto", timeout=1, memory_gb=2) == (exact_match, "")
    found, note = in_workers(own, "auto", timeout=1, memory_gb=2)
    assert isinstance(found, RewardWorkers)
    assert not note
    found.close()


def test_the_self_test_goes_through_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    task, before = load_task("addition"), children()
    with pytest.raises(InputError, match=r"gives 0 to 'b'.*known to be right.*self_test"):
        open_reward(Settings(function=f"{FILE}:wrong_about_b"), task)
    assert children() == before
    with opened_reward(Settings(function=f"{FILE}:wrong_about_b", self_test=False), task) as (reward, notes):
        assert isinstance(reward, RewardWorkers)
        assert notes == []
    monkeypatch.setattr("grouprl.processes.worker_slot.START_SECONDS", 3.0)
    with pytest.raises(InputError, match=rf"not ready after 3 s; it hung in endless \({FILE}, line \d+\)"):
        open_reward(Settings(function=f"{FILE}:hangs_on_a"), task)
    with opened_reward(Settings(workers=1), task) as (reward, _):
        assert isinstance(reward, VerdictReward)
    assert children() == before


def test_the_self_test_finds_a_task_whose_reward_is_wrong() -> None:
    task = load_task("addition")
    with pytest.raises(InputError, match="known to be wrong"):
        open_reward(Settings(correct_at=0.0), task)


RUN_REWARD = """
import time

def trap(completion, answer, **_):
    if answer.endswith("7"):
        print("caught by", answer)
        time.sleep(60)
    return float(completion.endswith(answer))
"""


def run_config(reward: dict[str, Any]) -> Any:
    return parse_config(
        {
            "task": {"name": "addition", "digits": 1},
            "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
            "steps": 2,
            "batch": {"prompts": 10, "group_size": 2},
            "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
            "reward": reward,
            "run": {"threads": 1},
        }
    )


def test_a_run_goes_on_when_its_reward_hangs_on_some_completions(tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text(RUN_REWARD)
    reward = {"function": f"{tmp_path}/trap.py:trap", "timeout": 0.4, "workers": 2, "max_failed_fraction": 1.0}
    before = children()
    folder = train(run_config(reward), folder=tmp_path / "run", console=Console(file=io.StringIO())).folder
    assert children() == before
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["phase"] == "train"]
    assert [line["step"] for line in steps] == [1, 2]
    rows = [row for path in sorted((folder / "rollouts").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    late = [row for row in rows if row["status"] == "timeout"]
    assert len(late) == sum(line["reward_timeouts"] for line in steps) > 0
    assert len(late) < len(rows)
    for row in rows:
        assert (row["problem"] is None) == (row["status"] == "ok")
        assert not (row["used"] and row["status"] != "ok")
    for row in late:
        assert row["reward"] is None
        assert "within 0.4 s" in row["problem"]
        assert "caught by" in row["problem"]
        assert "in trap" in row["problem"]
        assert f"it hung in trap ({tmp_path}/trap.py, line " in row["problem"].splitlines()[0]


def test_a_run_that_shall_stop_at_a_failure_stops_in_words(tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text(RUN_REWARD)
    reward = {"function": f"{tmp_path}/trap.py:trap", "timeout": 0.5, "workers": 2, "on_error": "raise"}
    before = children()
    with pytest.raises(RunError, match=r"sample addition/train/\d+#\d: the reward returned nothing (?s:.)*in trap"):
        train(run_config(reward), folder=tmp_path / "run", console=Console(file=io.StringIO()))
    assert children() == before


def test_a_run_is_the_same_with_workers_and_without(tmp_path: Path) -> None:
    (tmp_path / "length.py").write_text("def length(completion, answer):\n    return len(completion) % 3 / 2\n")
    for name, workers in (("here", 0), ("there", 2)):
        reward = {"function": f"{tmp_path}/length.py:length", "workers": workers}
        train(run_config(reward), folder=tmp_path / name, console=Console(file=io.StringIO()))
    for path in sorted((tmp_path / "here" / "rollouts").glob("*.parquet")):
        assert pq.read_table(path).equals(pq.read_table(tmp_path / "there" / "rollouts" / path.name))
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("here", "there")]
    assert weights[0] == weights[1]
