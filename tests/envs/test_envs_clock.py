"""Whose environments have a clock where nobody says so: every one that runs code which is not this package's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import toy_envs
from chat_policies import chatting
from grouprl.envs.environment_pool import HereStage
from grouprl.envs.environment_pool_choice import open_stage
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.rollout.episodes import Start, demonstrate, play
from grouprl.tasks import Example, load_task

SUPPORT = Path(__file__).parents[1] / "support"
TOOLS, PROGRAMS = SUPPORT / "tools_at_hand.py", SUPPORT / "agent_programs.py"
OWN = f"env:{toy_envs.__file__}:Counting"


def chosen(spec: Any) -> type:
    stage, note = open_stage(load_task(spec), "auto")
    stage.close()
    assert not note
    return type(stage)


def stuck(result: str) -> float:
    time.sleep(120)
    return 1.0


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ("gym:CartPole-v1", "gymnasium"),
        ("textarena:TicTacToe-v0", "textarena"),
        ("pettingzoo:classic.rps_v2", "pettingzoo"),
        ({"name": OWN, "characters": "ab?"}, None),
    ],
)
def test_games_of_others_get_a_clock(spec: Any, needs: str | None) -> None:
    if needs is not None:
        pytest.importorskip(needs)
    assert load_task(spec).needs_clock
    assert chosen(spec) is WorkerStage


@pytest.mark.parametrize(
    ("spec", "stage"),
    [
        ("guess", HereStage),
        ("python_tool", HereStage),
        ({"name": f"tools:{TOOLS}:add", "of": "summands"}, HereStage),  # in a process of its own, with a clock
        ({"name": f"tools:{TOOLS}:count", "of": "summands"}, WorkerStage),
        ({"name": f"program:{PROGRAMS}:twice", "examples": "summands"}, HereStage),
        ({"name": f"program:{PROGRAMS}:twice", "examples": "summands", "reward": f"{__file__}:stuck"}, WorkerStage),
        ({"name": f"program:{PROGRAMS}:twice", "examples": "summands", "expert": f"{PROGRAMS}:expert"}, WorkerStage),
    ],
)
def test_what_has_a_clock_of_its_own_acts_here_and_rewards_of_yours_do_not(spec: Any, stage: type) -> None:
    assert chosen(spec) is stage


def test_a_game_that_hangs_is_named_and_the_others_go_on() -> None:
    pytest.importorskip("gymnasium")
    task = load_task({"name": "gym:foreign_games:Hangs-v0", "turns": 2, "config": {"slow": 2}})  # the third one's seed
    stage, _ = open_stage(task, "auto", timeout=1.5)
    try:
        asked = [Start(task.example("train", i), i) for i in range(3)]
        found = demonstrate(chatting(None), task.environment, asked, max_turns=2, max_new_tokens=2, stage=stage)
    finally:
        stage.close()
    (failure,) = found.failures
    assert failure.status == "timeout"
    assert f"prompt '{asked[2].example.id}'" in failure.what
    assert "step() did not return within 1.5 s" in failure.what


def test_a_beginning_that_hangs_does_not_stop_the_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.setattr("grouprl.tasks.environments.PATIENCE", 2.0)
    task = load_task({"name": "gym:foreign_games:Hangs-v0", "config": {"early": True}})
    asked = [task.example("train", i) for i in range(6)]
    assert [example.prompt for example in asked] == ["" if q.columns["seed"] % 2 else "0>" for q in asked]
    assert {example.prompt for example in asked} == {"", "0>"}


def test_programs_in_a_worker_wait_at_the_same_time() -> None:
    task = load_task({"name": f"program:{PROGRAMS}:together", "examples": "summands"})
    stage = WorkerStage(task, 1, timeout=20, memory_gb=4)
    starts = [Start(Example("sum", "3+4=", {"answer": "7"}), i) for i in range(8)]
    limits: dict[str, Any] = {"max_turns": 2, "max_new_tokens": 2, "stage": stage}
    try:
        found = play(chatting(), task.environment, starts, **limits)
    finally:
        stage.close()
    assert not found.failures


def test_a_reward_of_a_program_that_hangs_has_a_clock() -> None:
    task = load_task({"name": f"program:{PROGRAMS}:answer_once", "examples": "summands", "reward": f"{__file__}:stuck"})
    stage, _ = open_stage(task, "auto", timeout=1.5)
    example = Example("sum", "3+4=", {"answer": "7"})
    try:
        found = play(chatting(), task.environment, [Start(example, 0)], max_turns=2, max_new_tokens=2, stage=stage)
    finally:
        stage.close()
    assert [failure.status for failure in found.failures] == ["timeout"]
