"""Environments that hang, die, raise, never end, say too much or what is no text, or change the past."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import hard_envs
import toy_envs
from episode_runs import launch, records
from grouprl import InputError
from grouprl.envs.environment import Observation, Step
from grouprl.envs.environment_pool import HereStage
from grouprl.envs.environment_pool_choice import open_stage
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.envs.json_values import from_plain, to_plain
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny
from grouprl.processes.parcel import CannotSend
from grouprl.rewards.contract import Failure
from grouprl.rollout.episodes import Episodes, Start, demonstrate, play
from grouprl.tasks import load_task


def policy() -> CausalPolicy:
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 64}
    return CausalPolicy(*build_tiny(toy_envs.AskTask.alphabet, **sizes, seed=1))


def starts(task: Any, count: int) -> list[Start]:
    return [Start(task.example("train", i), i, action_seed=100 + i) for i in range(count)]


def played(task: Any, stage: Any, count: int = 12) -> Episodes:
    limits = {"max_turns": 4, "max_new_tokens": 2, "agents": task.agents}
    return play(policy(), task.environment, starts(task, count), **limits, stage=stage)


def same(one: Episodes, two: Episodes, rows: list[int]) -> None:
    for row in rows:
        assert one.rollout.response_ids[row] == two.rollout.response_ids[row]
        assert one.verdicts[row] == two.verdicts[row]
        assert one.records[row] == two.records[row]
        assert one.rollout.logp_bt[row].tolist()[:4] == two.rollout.logp_bt[row].tolist()[:4]


@pytest.mark.parametrize(("make", "count"), [(toy_envs.AskTask, 2), (toy_envs.TeamTask, 1)])
def test_workers_play_the_same_episodes(make: Any, count: int) -> None:
    task = make()
    stage = WorkerStage(task, count, timeout=20, memory_gb=4)
    here = played(task, None)
    for _ in range(2):
        there = played(task, stage)
        assert there.rollout.response_ids == here.rollout.response_ids
        assert there.records == here.records
        assert there.verdicts == here.verdicts
        assert there.transcripts == here.transcripts
    shown = [demonstrate(policy(), task.environment, starts(task, 9), max_turns=4, max_new_tokens=2,
                         agents=task.agents, stage=s) for s in (None, stage)]  # fmt: skip
    assert shown[0].rollout.response_ids == shown[1].rollout.response_ids
    stage.close()
    assert not stage._slots


@pytest.mark.parametrize(
    ("way", "status", "words"),
    [
        ("hang", "timeout", r"step\(\) did not return within 3 s \(environment.timeout\)"),
        ("slow reset", "timeout", r"reset\(\) did not return within 3 s"),
        ("exit", "error", r"step\(\) did not return: the process of the environment ended by itself with exit code 3"),
        ("shout", "error", "was ended by the signal SIGKILL"),
        ("memory", "error", r"step\(\) raised MemoryError"),
        ("raise", "error", r"step\(\) raised ValueError: the board fell down"),
        ("long", "error", "an observation has 2000000 characters; 1000000 is the limit"),
        ("longest", "error", "an observation has 40000000 characters"),
        ("text", "error", "an observation has text of type bytes"),
        ("half", "error", r"an observation holds '\\ud800', half of a character"),
    ],
)
def test_one_that_misbehaves_is_named_and_nothing_else_is_lost(way: str, status: str, words: str) -> None:
    task = hard_envs.HardTask(way)
    stage = WorkerStage(task, 1, timeout=3, memory_gb=4)
    found, well = played(task, stage, 6), played(toy_envs.AskTask(), None, 6)
    stage.close()
    (failure,) = found.failures
    assert found.verdicts[0] == failure
    assert failure.status == status
    assert re.search(words, failure.what), failure.what
    assert "prompt 'ask/train/0', seed 0" in failure.what
    assert found.ended[0] == "error"
    if way == "hang":
        assert "most recent call first" in found.verdicts[0].trace
    if way == "shout":
        assert "it is dark in here" in found.verdicts[0].trace
    same(found, well, [1, 2, 3, 4, 5])


def test_an_environment_that_hangs_once_takes_nobody_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPRL_TEST_MARK", str(tmp_path / "mark"))
    task = hard_envs.HardTask("once")
    stage = WorkerStage(task, 1, timeout=3, memory_gb=4)
    found = played(task, stage, 5)
    stage.close()
    assert [row for row in range(5) if isinstance(found.verdicts[row], Failure)] == [0]
    same(found, played(toy_envs.AskTask(), None, 5), list(range(1, 5)))


def test_one_that_gives_another_past_is_named() -> None:
    class OneHangs(hard_envs.HardTask):
        def example(self, split: Any, index: int) -> Any:
            example = super().example(split, index)
            example.columns["way"] = "hang" if index == 5 else "clock"
            return example

    hard_envs.OneHangs = OneHangs  # type: ignore[attr-defined]
    stage = WorkerStage(hard_envs.HardTask("clock"), 1, timeout=3, memory_gb=4)
    task = OneHangs()
    found = played(task, stage, 6)
    stage.close()
    said = [failure.what for failure in found.failures]
    assert any("did not return" in what for what in said)
    changed = [what for what in said if "not reproducible: made anew with the same seed and actions" in what]
    assert changed
    assert "prompt 'ask/train/" in changed[0]


def test_of_a_prompt_that_loses_all_its_episodes_the_rest_is_not_tried() -> None:
    task = hard_envs.HardTask("exit")
    stage = WorkerStage(task, 4, timeout=20, memory_gb=4)
    requested = [Start(task.example("train", 0), i, action_seed=i) for i in range(24)]
    found = play(policy(), task.environment, requested, max_turns=2, max_new_tokens=2, stage=stage)
    stage.close()
    assert len(found.failures) == 24
    untried = [failure.what for failure in found.failures if "not tried" in failure.what]
    assert 1 <= len(untried) <= 24 - 17, "those that were being played as the last counted one was lost end, too"
    assert all("not tried, after 17 episodes of its prompt" in what for what in untried)


@pytest.mark.parametrize("stage", ["here", "workers"])
def test_one_that_never_ends_runs_out_of_turns_or_of_room(stage: str) -> None:
    task = hard_envs.HardTask("endless")
    held = HereStage(task.environment) if stage == "here" else WorkerStage(task, 1, timeout=5, memory_gb=4)
    requested = [Start(task.example("train", 0), 0)]
    for turns, why in ((3, "out_of_turns"), (1000, "out_of_room")):
        found = play(policy(), task.environment, requested, max_turns=turns, max_new_tokens=2, stage=held)
        assert found.ended == (why,)
        assert found.rollout.truncated_b.all()
        assert found.outcomes[0] == {"turn_rewards": 0.0, "correct": 0.0}
    held.close()


def test_two_that_wait_for_each_other_run_out_of_turns() -> None:
    class Polite(toy_envs.Team):
        def step(self, action: str) -> Step:
            self.acting = {"boss": "helper", "helper": "boss"}[self.acting]
            return Step(Observation("?", agent=self.acting))

    task = toy_envs.TeamTask()
    task.environment = Polite  # type: ignore[method-assign]
    found = played(task, None, 2)
    assert set(found.ended) == {"out_of_turns"}
    assert found.turns_b.tolist() == [2, 2, 2, 2]
    assert not found.failures


def test_what_cannot_be_sent_acts_here_and_says_so() -> None:
    class Local(toy_envs.AskTask):
        pass

    stage, note = open_stage(Local(), "auto", timeout=1)
    assert isinstance(stage, HereStage)
    assert "It acts in this process: environment.timeout has no effect" in note
    with pytest.raises(CannotSend, match=r"set environment\.workers to 0"):
        open_stage(Local(), 2)
    with pytest.raises(InputError, match="0 workers"):
        WorkerStage(toy_envs.AskTask(), 0, timeout=1, memory_gb=1)


def test_environments_of_this_package_act_here() -> None:
    for name in ("guess", "keys", "tictactoe"):
        assert isinstance(open_stage(load_task(name), "auto")[0], HereStage)
    own = load_task({"name": f"env:{toy_envs.__file__}:Counting", "characters": "ab?"})
    stage, note = open_stage(own, "auto")
    assert isinstance(stage, WorkerStage)
    assert not note


def test_nothing_strange_comes_out_of_a_worker() -> None:
    import numpy as np

    step = Step(Observation("a", "s", "b", ("x",), True), np.float32(0.5), np.bool_(True), False, True, {"i": object()})
    back = from_plain(to_plain(step))
    assert back == Step(Observation("a", "s", "b", ("x",), True), 0.5, True, False, True)
    assert type(back.reward) is float
    sent = np.float32([[0.1], [np.nan]])
    back = from_plain(json.loads(json.dumps(to_plain(sent))))
    assert (back.dtype, back.shape, back.tobytes()) == (sent.dtype, sent.shape, sent.tobytes())
    assert from_plain(to_plain((True, {"a": 1, "b": float("inf")}))) == (True, {"a": 1, "b": float("inf")})
    with pytest.raises(ValueError, match="not a kind of value"):
        from_plain({"is": "code", "values": ""})


def test_a_run_goes_on_where_environments_hang(tmp_path: Path) -> None:
    task = {"name": f"{hard_envs.__file__}:HardTask", "way": "hang"}
    settings = {"reward": {"max_failed_fraction": 0.5}, "environment": {"workers": 1, "timeout": 0.5}}
    batch = {"prompts": 4, "group_size": 2}
    folder = launch(
        tmp_path / "run", task=task, steps=1, batch=batch, eval={"final_prompts": 2, "samples": 1}, **settings
    )
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    assert [row["status"] for row in rows].count("timeout") == 2
    assert sum(row["used"] for row in rows) == 6
    assert records(folder, "train")[0]["reward_timeouts"] == 2
    assert not _children_of(os.getpid())


def _children_of(parent: int) -> list[int]:
    """Worker processes of environments that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
                status = (entry / "status").read_text()
            except OSError:
                continue
            if b"environment_pool_worker" in words and f"PPid:\t{parent}\n" in status:
                found.append(int(entry.name))
    return found


def test_beginnings_that_raise_or_hang_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grouprl.tasks.environments.PATIENCE", 2.0)
    path = f"{hard_envs.__file__}:Moody"
    task = {"name": f"env:{path}", "turns": 2, "tokens": 2, "characters": toy_envs.AskTask.alphabet}
    own = load_task(task)
    moods = [own.example("train", i).columns["seed"] % 8 for i in range(16)]
    assert [own.example("train", i).prompt == "" for i in range(16)] == [mood < 2 for mood in moods]
    settings = {"reward": {"max_failed_fraction": 0.9}, "environment": {"workers": 1, "timeout": 0.5}}
    batch = {"prompts": 10, "group_size": 2}
    folder = launch(tmp_path / "run", task=task, steps=1, batch=batch, eval={"final_prompts": 8}, **settings)
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    said = {row["status"] for row in rows}
    assert "ok" in said
    assert said & {"error", "timeout"}
    assert not any(row["used"] for row in rows if row["status"] != "ok")
