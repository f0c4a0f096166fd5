"""Runs whose reward is a judge: what the plan says, what is trained on, and what happens where it fails."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from chat_policies import chatting
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.plan.plan import plan
from grouprl.rewards.judge import TrajectoryJudge
from grouprl.rewards.judge_client import JudgeClient, NoAnswer
from grouprl.rewards.judge_text import JudgedTrajectory
from grouprl.train.loop import train
from judge_server import judging, material, scores

TINY = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}}


def settings(url, **more):
    return {
        "task": "addition",
        "model": TINY,
        "reward": {"judge": url},
        "batch": {"prompts": 2, "group_size": 4},
        "steps": 2,
        "eval": {"every": 0, "final_prompts": 2, "samples": 2},
        **more,
    }


def trained(given, folder):
    summary = train(parse_config(given), folder=folder, console=Console(file=io.StringIO()))
    return [json.loads(line) for line in (summary.folder / "metrics.jsonl").read_text().splitlines()]


def by_digits(request):
    return scores(request, lambda text: sum(c.isdigit() for c in text) / (len(text) + 1))


def test_a_run_is_paid_by_its_judge(tmp_path):
    with judging(by_digits) as (url, got):
        lines = trained(settings(url), tmp_path / "run")
    steps = [line for line in lines if line["phase"] == "train"]
    assert len(steps) == 2
    for line in steps:
        assert 0 < line["reward_mean"] < 1
        assert line["reward/judge"] == pytest.approx(line["reward_mean"])
        assert line["reward_errors"] == 0
    told = [material(request) for request in got]
    assert all(len(each["shared"]) == 1 for each in told)
    rollouts = [each for each in told if len(each["trajectories"]) > 2]
    assert 1 <= len(rollouts) <= 4  # one for each of two groups in two steps; equal completions are shown once


def test_what_an_environment_pays_is_added(tmp_path):
    task = {"name": "guess", "numbers": 3}
    with judging(lambda request: scores(request, lambda _: 0.5)) as (url, got):
        lines = trained(settings(url, task=task, steps=1), tmp_path / "run")
    (step,) = [line for line in lines if line["phase"] == "train"]
    assert step["reward/judge"] == 0.5
    own = sum(value for name, value in step.items() if name.startswith("reward/") and name != "reward/judge")
    assert step["reward_mean"] == pytest.approx(0.5 + own, abs=1.0)
    assert step["reward_mean"] >= 0.5
    assert all(len(material(request)["shared"]) == 1 for request in got)


def test_a_judge_that_fails_is_handled_as_set(tmp_path):
    with judging(lambda _: (400, "no judging here")) as (url, _), pytest.raises(RunError, match="no judging here"):
        trained(settings(url), tmp_path / "run")


def plan_of(**more):
    return plan(parse_config(settings("http://127.0.0.1:8000/v1", **more)))


def test_the_plan_names_the_judge():
    found = plan_of()
    assert not found.refusals
    (note,) = [note for note in found.notes if "judge" in note]
    assert "the model at http://127.0.0.1:8000/v1 ranks the 4 trajectories of each group in one request" in note
    assert "instead of the task's reward" in note
    judge = {"url": "http://127.0.0.1:8000/v1", "model": "big"}
    idle = plan_of(reward={"judge": judge, "workers": 2}).idle
    assert any("reward.workers has no effect" in each for each in idle)
    assert any("big at http" in note for note in plan_of(reward={"judge": judge}).notes)


def test_where_there_is_nothing_to_compare():
    said = plan_of(batch={"prompts": 2, "group_size": 1}, method="reinforce").refusals
    assert any("batch.group_size is 1" in each for each in said)
    assert any("greedy completions scored alone" in each for each in plan_of(method="remax").refusals)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"judge": "localhost"}, "address of an OpenAI-compatible endpoint"),
        ({"judge": {"url": "http://x/v1", "modle": "big"}}, "modle"),
        ({"judge": "http://x/v1", "function": "exact_match"}, "leave one of them out"),
    ],
)
def test_settings_that_mean_nothing(reward, message):
    with pytest.raises(InputError, match=message):
        plan(parse_config(settings("", reward=reward)))


def test_a_policy_of_ours_may_be_the_judge():
    """What `serve` sends is understood, its errors are told in words, and a model that cannot judge says so."""
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'grouprl[serve]'")
    from grouprl.chat import Endpoint
    from grouprl.serve import Service

    service = Service(chatting(), "tiny")
    endpoint = Endpoint(service)
    group = [JudgedTrajectory(({"role": "user", "content": "1+1="},), text) for text in "23"]
    try:
        client = JudgeClient(endpoint.url, "tiny", "", 60.0, 1)
        with pytest.raises(NoAnswer, match=r"cut off; give it more|not JSON"):
            TrajectoryJudge(client, tokens=8, rubric="Right ones.").judge(group)
        with pytest.raises(NoAnswer, match=r"answered 400.*the model has room for 2048"):
            TrajectoryJudge(client, tokens=4096).judge(group)
        with pytest.raises(NoAnswer, match=r"answered 400.*not held to a form"):
            TrajectoryJudge(client, schema=True).judge(group)
        with pytest.raises(NoAnswer, match=r"answered 404.*There is no model 'big'"):
            TrajectoryJudge(JudgeClient(endpoint.url, "big", "", 60.0, 1)).judge(group)
    finally:
        endpoint.close()
        service.close()
