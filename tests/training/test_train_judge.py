"""Runs whose reward is a judge: what the plan says, what is trained on, and what happens where it fails."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from dataclasses import replace

import pytest
from rich.console import Console

from chat_policies import chatting
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.plan.plan import plan
from grouprl.rewards.judging.judge import TrajectoryJudge
from grouprl.rewards.judging.judge_client import JudgeClient, NoAnswer
from grouprl.rewards.judging.judge_text import JudgedTrajectory
from grouprl.rewards.judging.verdict_store import VerdictStore
from grouprl.training.loop import train
from judge_server import judging, material, scores
from killed_runs import child, evidence, finished, log_of

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


def trained(given, folder, resume=False):
    summary = train(parse_config(given), folder=folder, resume=resume, console=Console(file=io.StringIO()))
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


def fickle():
    """A judge that says something else of what it was asked before."""
    asked = {}

    def answer(request):
        told = json.dumps(request["messages"])
        asked[told] = asked.get(told, 0) + 1
        return scores(request, lambda text: (sum(map(ord, text)) % 97 + 5 * asked[told]) % 97 / 97)

    return answer


def in_a_process(given, folder, resume):
    """A run in a process of its own, which may be killed."""
    from multiprocessing import get_context

    config = folder.with_suffix(".yaml")
    config.write_text(json.dumps(given))  # JSON is YAML
    process = get_context("spawn").Process(target=child, args=(config, folder, resume, log_of(folder)))
    process.start()
    return process


def test_a_killed_run_is_paid_by_a_fickle_judge_as_if_it_had_not_been(tmp_path):
    run = {"checkpoint_every": 3, "threads": 1, "keep": 100}
    folder, killed, resumed = tmp_path / "killed", threading.Event(), threading.Event()
    with judging(fickle()) as (url, _):
        trained(settings(url, steps=6, run=run), tmp_path / "whole")
    inner = fickle()

    def answer(request):
        if (folder / "rollouts" / "step-000005.parquet").exists() and not resumed.is_set():
            if not killed.is_set():
                killed.set()
                os.kill(process.pid, signal.SIGKILL)
            return "nobody hears this"
        return inner(request)

    with judging(answer) as (url, got):
        given = settings(url, steps=6, run=run)
        process = in_a_process(given, folder, resume=False)
        finished(process, folder, code=-signal.SIGKILL)
        asked = len(got)
        resumed.set()
        trained(given, folder, resume=True)
        again = [json.dumps(request["messages"]) for request in got]
        twice = len(again) - len(set(again))
        assert twice <= 2, "only what the judge was asked when the run was killed is asked again"
        assert len(got) > asked
    assert evidence(folder) == evidence(tmp_path / "whole")


def test_verdicts_are_not_kept_where_that_is_switched_off(tmp_path):
    with judging(by_digits) as (url, _):
        trained(settings(url, reward={"judge": {"url": url, "cache": False}}, steps=1), tmp_path / "run")
    assert not (tmp_path / "run" / "verdicts").exists()


def test_a_damaged_verdict_is_asked_for_again(tmp_path):
    group = [JudgedTrajectory(({"role": "user", "content": "1+1="},), text) for text in "23"]
    with judging(by_digits) as (url, got):
        judge = TrajectoryJudge(JudgeClient(url, "", "", 60.0, 1), store=VerdictStore(tmp_path / "verdicts"))
        first = judge.judge(group)
        assert (judge.judge(group), len(got)) == (first, 1)
        for damage in (b"", b"{", b"[]", b'{"scores": [1.0]}', b'{"scores": [1.0, 2.0]}', b'{"scores": [NaN, 0.5]}'):
            before = len(got)
            (file,) = (tmp_path / "verdicts").iterdir()
            file.write_bytes(damage)
            assert judge.judge(group) == first
            assert len(got) == before + 1
        other = replace(judge, rubric="Other.")
        other.judge(group)
        replace(judge, temperature=0.5).judge(group)
        assert len(list((tmp_path / "verdicts").iterdir())) == 3, "another question has another verdict"


def by_digits_of_any(request):
    """The same taste, for pairs, too."""
    told = material(request)
    if "trajectories" in told:
        return by_digits(request)
    best = max(told["completions"], key=lambda e: (sum(map(str.isdigit, e["text"])), e["text"]))
    return json.dumps({"better": best["id"]})


@pytest.mark.parametrize("more", [{}, {"compare": True}, {"compare": True, "gold": "task"}])
def test_a_sampler_process_keeps_verdicts_too(more, tmp_path):
    with judging(by_digits_of_any) as (url, got):
        judge = {"url": url, **{name: value for name, value in more.items() if name != "gold"}}
        reward = {"judge": judge, **{name: value for name, value in more.items() if name == "gold"}}
        trained(settings(url, reward=reward, steps=1, run={"threads": 1, "async_steps": 1}), tmp_path / "run")
    assert len(list((tmp_path / "run" / "verdicts").iterdir())) == len(got)


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
        with pytest.raises(NoAnswer, match=r"cut off; increase|not JSON"):
            TrajectoryJudge(client, tokens=8, rubric="Right ones.").judge(group)
        with pytest.raises(NoAnswer, match=r"answered 400.*the model has room for 2048"):
            TrajectoryJudge(client, tokens=4096).judge(group)
        with pytest.raises(NoAnswer, match=r"answered 400.*not held to a form|cut off; increase"):
            TrajectoryJudge(client, tokens=8, schema=True).judge(group)
        with pytest.raises(NoAnswer, match=r"answered 404.*There is no model 'big'"):
            TrajectoryJudge(JudgeClient(endpoint.url, "big", "", 60.0, 1)).judge(group)
    finally:
        endpoint.close()
        service.close()
