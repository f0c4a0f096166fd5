"""What a judge costs: requests, kept answers and tokens, told alike for judges of groups and of pairs."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from pyarrow.parquet import read_table
from rich.console import Console

from grouprl.config.run import load_config, parse_config
from grouprl.core.errors import RunError
from grouprl.orchestrator.account_words import in_words, totals
from grouprl.orchestrator.reward import opened_reward
from grouprl.plan.plan import plan
from grouprl.rewards.judging import judge_client, judge_costs
from grouprl.rewards.judging.comparing import ComparedPair
from grouprl.rewards.judging.judge import TrajectoryJudge, side_by_side
from grouprl.rewards.judging.judge_client import JudgeClient, NoAnswer
from grouprl.rewards.judging.judge_costs import Pace, cost_words, told_tokens
from grouprl.rewards.judging.judge_text import JudgedTrajectory
from grouprl.rewards.judging.pair_judge import PairJudge
from grouprl.rewards.judging.verdict_store import VerdictStore
from grouprl.tasks import load_task
from grouprl.training.loop import train
from judge_server import judging, material, scores

TINY = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}}
USAGE = {"prompt_tokens": 50, "completion_tokens": 7, "total_tokens": 57}


def either(request: dict[str, Any]) -> str:
    """A reply to both kinds of judge: more letters are better."""
    told = material(request)
    if "trajectories" in told:
        return scores(request, lambda text: len(text) / 100)
    return json.dumps({"better": max(told["completions"], key=lambda each: each["text"])["id"]})


def client_at(url: str, tries: int = 1, **more: Any) -> JudgeClient:
    return JudgeClient(url, "m", "", 5.0, tries, **more)


def group(*texts: str) -> list[JudgedTrajectory]:
    return [JudgedTrajectory(({"role": "user", "content": "Say it."},), text) for text in texts]


def asked_once(judge: TrajectoryJudge | PairJudge) -> None:
    if isinstance(judge, TrajectoryJudge):
        judge.judge(group("a", "bb"))
    else:
        judge.compare([ComparedPair("Say it.", "a", "bb", {})])


@pytest.mark.parametrize(("kind", "requests"), [(TrajectoryJudge, 1), (PairJudge, 2)])
def test_both_judges_tell_requests_kept_answers_and_tokens(kind: Any, requests: int, tmp_path: Path) -> None:
    with judging(either, usage=USAGE) as (url, got):
        judge = kind(client_at(url), store=VerdictStore(tmp_path))
        asked_once(judge)
        first = judge.notes()
        asked_once(judge)
        again = judge.notes()
        assert judge.notes() == {}
    assert len(got) == requests
    told = {"judge_prompt_tokens": 50 * requests, "judge_reply_tokens": 7 * requests}
    assert told | {"judge_requests": requests, "judge_kept": 0} == {
        name: first[name] for name in judge_costs.COSTS.values()
    }
    assert (again["judge_requests"], again["judge_kept"]) == (0, requests)
    assert "judge_prompt_tokens" not in again


def test_each_try_is_a_request_and_unusable_replies_cost_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_client.time, "sleep", lambda _: None)
    with judging(lambda _: "no JSON", usage=USAGE) as (url, got):
        judge = TrajectoryJudge(client_at(url, tries=3))
        with pytest.raises(NoAnswer):
            judge.judge(group("a", "b"))
    assert len(got) == 3
    assert judge.notes() == {"judge_requests": 3, "judge_kept": 0, "judge_prompt_tokens": 150, "judge_reply_tokens": 21}


@pytest.mark.parametrize(
    "usage", [None, "many", [], {}, {"prompt_tokens": True}, {"prompt_tokens": -1}, {"completion_tokens": 1e300}]
)
def test_an_endpoint_that_tells_no_usable_counts_has_requests_alone(usage: Any) -> None:
    assert told_tokens({"usage": usage}) == {}
    with judging(either, usage=usage) as (url, _):
        judge = TrajectoryJudge(client_at(url))
        asked_once(judge)
    assert judge.notes() == {"judge_requests": 1, "judge_kept": 0}


def test_equal_requests_at_the_same_time_are_asked_once(tmp_path: Path) -> None:
    def slow(request: dict[str, Any]) -> str:
        time.sleep(0.2)
        return either(request)

    with judging(slow) as (url, got):
        judge = TrajectoryJudge(client_at(url), store=VerdictStore(tmp_path))
        found = side_by_side(lambda _: judge.judge(group("a", "bb")), range(4), 4)
    assert len(set(found)) == 1
    assert len(got) == 1
    assert judge.notes() == {"judge_requests": 1, "judge_kept": 3}


def test_requests_keep_the_pace_of_every_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()
    monkeypatch.setattr(judge_costs.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(judge_costs.time, "sleep", slept.append)
    pace = Pace(30)
    for _ in range(3):
        pace.wait()
    assert slept == [0.0, 2.0, 4.0]
    now[0] += 60
    pace.wait()
    assert slept[-1] == 0.0
    Pace(None).wait()
    assert len(slept) == 4
    slept.clear()
    with judging(either) as (url, _):
        for judge in (TrajectoryJudge(client_at(url, per_minute=60)), PairJudge(client_at(url, per_minute=60))):
            asked_once(judge)
            asked_once(judge)
    assert slept == [0.0, 1.0, 0.0, 1.0, 2.0, 3.0]


def settings(url: str, **more: Any) -> dict[str, Any]:
    judge = {"url": url, **more}
    return {
        "task": "addition",
        "model": TINY,
        "reward": {"judge": judge, "gold": "task"},
        "batch": {"prompts": 2, "group_size": 4},
        "steps": 2,
        "eval": {"every": 0, "final_prompts": 2, "samples": 2},
        "run": {"threads": 1, "check_model": False},
    }


@pytest.mark.parametrize("more", [{}, {"compare": True}, {"async_steps": 1}, {"compare": True, "async_steps": 1}])
def test_the_account_of_a_run_has_every_request(more: dict[str, Any], tmp_path: Path) -> None:
    given = settings("", **{name: value for name, value in more.items() if name != "async_steps"})
    given["run"] |= {name: value for name, value in more.items() if name == "async_steps"}
    screen = io.StringIO()
    with judging(either, usage=USAGE) as (url, got):
        given["reward"]["judge"]["url"] = url
        train(parse_config(given), folder=tmp_path / "run", console=Console(file=screen, width=200))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    account = json.loads((tmp_path / "run" / "summary.json").read_text())["account"]
    assert account["judge_requests"] == len(got) == sum(line.get("judge_requests", 0) for line in lines)
    assert account["judge_prompt_tokens"] == 50 * len(got)
    assert account["judge_reply_tokens"] == 7 * len(got)
    assert any(line["phase"] == "train" and line.get("judge_requests") for line in lines)
    answered = {line.get("judge_flips") for line in lines if line["phase"] == "train"}
    assert answered == ({0.0} if "compare" in more else {None})
    tokens = f"({50 * len(got):,} tokens of prompts and {7 * len(got):,} tokens of replies)"
    said = f"The judge got {len(got)} requests {tokens}"
    assert said in screen.getvalue()
    assert said in in_words(totals(lines))
    compared = {line.get("eval/compared") for line in lines if line["phase"] == "eval"}
    assert compared == ({1.0} if "compare" in more else {None})
    assert ("true reward (gold)" in screen.getvalue()) is ("compare" in more)


def test_costs_in_words() -> None:
    assert cost_words({}) == ""
    assert cost_words({"judge_requests": 1}) == "The judge got 1 request."
    assert cost_words({"judge_requests": 1200, "judge_kept": 1}) == (
        "The judge got 1,200 requests; 1 answer was kept from before."
    )


def test_the_plan_tells_the_requests_of_a_run_and_how_long_they_take() -> None:
    def notes(**judge: Any) -> str:
        found = plan(parse_config(settings("http://127.0.0.1:8000/v1", **judge)))
        assert not any("per_minute" in each for each in found.idle)
        return " ".join(note for note in found.notes if "judge" in note)

    assert "2 per rollout and 4 in 2 steps, up to 8 in evaluations besides, replies of 2,048 tokens at most" in notes()
    paced = notes(compare=True, per_minute=48, tokens=100)
    assert "up to 24 requests per rollout and 48 in 2 steps, up to 8 in evaluations besides, at least 30 s" in paced
    assert "at 48 a minute, replies of 100 tokens at most" in paced


def by_taste(request: dict[str, Any]) -> str:
    """A judge whose taste is in the texts alone."""
    told = material(request)
    if "trajectories" in told:
        return scores(request, liking)
    return json.dumps({"better": max(told["completions"], key=lambda each: liking(each["text"]))["id"]})


def liking(text: str) -> float:
    return (sum(map(ord, text)) * 7919 % 1009 + len(text) / 100) / 1010


@pytest.mark.parametrize(
    ("method", "size", "judge", "each"),
    [
        ("xpo", 1, {"compare": True}, 4),  # one pair in both orders, two prompts
        ("xpo", 3, {"compare": True}, 24),  # six pairs of three and an opponent
        ("xpo", 2, {}, 6),  # two completions, the opponent, and all three
        ({"name": "nash_md", "by": "judge"}, 3, {"compare": True, "samples": 2}, 48),
        ({"name": "nash_md", "by": "judge"}, 3, {"compare": True, "cache": False}, 24),
        ({"name": "gpo", "by": "judge"}, 3, {"compare": True}, 12),
        ({"name": "gpo", "by": "judge"}, 3, {"compare": True, "cache": False}, 24),
    ],
)
def test_the_plan_counts_what_a_run_asks(method: Any, size: int, judge: Any, each: int, tmp_path: Path) -> None:
    with judging(by_taste) as (url, got):
        given = settings(url, **judge) | {"method": method, "steps": 1, "batch": {"prompts": 2, "group_size": size}}
        told = next(note for note in plan(parse_config(given)).notes if "is a judge" in note)
        train(parse_config(given), folder=tmp_path / "run", console=Console(file=io.StringIO()))
    assert f"{each} requests per rollout" in told or f", {each} per rollout" in told
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["judge_requests"] for line in lines if line["phase"] == "train"] == [each]
    most = int(told.partition("steps, up to ")[2].partition(" in evaluations")[0])
    assert 0 < len(got) - each <= most


@pytest.mark.parametrize("judge", [{"compare": True}, {}])
@pytest.mark.parametrize("size", [1, 2])
def test_an_opponent_is_judged_together_with_the_completions_it_is_compared_with(
    size: int, judge: Any, tmp_path: Path
) -> None:
    with judging(by_taste) as (url, _):
        given = settings(url, **judge) | {"method": "xpo", "batch": {"prompts": 3, "group_size": size}, "steps": 1}
        train(parse_config(given), folder=tmp_path / "run", console=Console(file=io.StringIO()))
    rows = read_table(tmp_path / "run" / "rollouts" / "step-000001.parquet").to_pylist()
    assert len(rows) == 3 * (size + 1)
    for row in rows:
        others = [x["completion"] for x in rows if x["group"] == row["group"] and x["sample"] != row["sample"]]
        wins = [0.5 if x == row["completion"] else float(liking(row["completion"]) > liking(x)) for x in others]
        expected = fmean(wins) if judge else liking(row["completion"])
        assert row["reward"] == pytest.approx(expected)
    assert len({row["reward"] for row in rows}) > 1


@pytest.mark.parametrize(("judge", "ahead"), [({"compare": True, "samples": 2}, 0), ({}, 0), ({}, 1)])
def test_a_second_run_with_the_same_folder_of_verdicts_asks_nothing(judge: Any, ahead: int, tmp_path: Path) -> None:
    file, kept = tmp_path / "run.yaml", tmp_path / "kept" / "here"
    with judging(by_taste) as (url, got):
        given = settings(url, **judge, cache="kept/here")
        given["run"] |= {"async_steps": ahead}
        file.write_text(json.dumps(given))
        train(load_config(str(file)), folder=tmp_path / "first", console=Console(file=io.StringIO()))
        asked = len(got)
        if not ahead:  # ahead of training it is chance which weights sample
            train(load_config(str(file)), folder=tmp_path / "second", console=Console(file=io.StringIO()))
            assert len(got) == asked
    assert len(list(kept.iterdir())) == asked > 0
    assert not list((tmp_path / "first").glob("verdicts/*"))
    with opened_reward(load_config(str(file)).reward, load_task("addition")) as (reward, _):
        assert reward.paid.store.folder == kept


def test_locks_of_requests_do_not_pile_up(tmp_path: Path) -> None:
    from grouprl.rewards.judging import verdict_store

    store = VerdictStore(tmp_path)
    with store.alone("a"):
        other = threading.Thread(target=lambda: store.alone("b").__enter__())
        other.start()
        other.join(5.0)
        assert not other.is_alive(), "another request waits for nobody"
    assert len(verdict_store._LOCKS) <= 1


@pytest.mark.parametrize("kind", [TrajectoryJudge, PairJudge])
def test_only_a_reply_that_cannot_be_read_changes_the_next_request(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_client.time, "sleep", lambda _: None)
    seen: list[int] = []

    def answer(request: dict[str, Any]) -> Any:
        seen.append(len(request["messages"]))
        return {1: (500, "down"), 2: "no JSON"}.get(len(seen)) or either(request)

    with judging(answer) as (url, got):
        asked_once(kind(client_at(url, tries=3)))
    assert seen[:3] == [2, 2, 3]
    assert got[0]["messages"] == got[1]["messages"] == got[2]["messages"][:2]


ASK = """
import sys
from pathlib import Path
from grouprl.rewards.judging.judge_client import JudgeClient

url, pace, times = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
client = JudgeClient(url, "m", "", 60.0, 1, per_minute=150, shared_pace=pace)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(times):
    client.complete([{"role": "user", "content": "?"}], {})
"""


def test_processes_keep_one_pace_together(tmp_path: Path) -> None:
    """150 a minute is one in 0.4 s, whoever asks: three processes with four requests each take 11 gaps."""
    arrived: list[float] = []

    def answer(request: dict[str, Any]) -> Any:
        arrived.append(time.monotonic())
        return "yes"

    with judging(answer) as (url, _):
        asked = [sys.executable, "-c", ASK, url, str(tmp_path / ".pace"), "4"]
        others = [subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
        for other in others:
            other.communicate("go\n", timeout=120)
            assert other.returncode == 0
    assert len(arrived) == 12
    assert max(arrived) - min(arrived) > 11 * 0.4 - 0.3


def test_what_a_machine_wrote_before_it_started_anew_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    now = [1e6]
    monkeypatch.setattr(judge_costs.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(judge_costs.time, "sleep", slept.append)
    pace = tmp_path / ".pace"
    for _ in range(3):
        Pace(60, pace).wait()
    now[0] = 50.0
    Pace(60, pace).wait()
    Pace(60, pace).wait()
    assert slept == [0.0, 1.0, 2.0, 0.0, 1.0]
    pace.write_bytes(b"half")
    Pace(60, pace).wait()
    assert slept[-1] == 0.0
    with pytest.raises(RunError, match=r"missing"):
        Pace(60, tmp_path / "missing" / ".pace").wait()


def test_an_asynchronous_run_asks_its_judge_no_faster_than_it_may(tmp_path: Path) -> None:
    """The trainer's evaluations and two samplers ask at 40 a minute together, one in 1.5 s."""
    arrived: list[float] = []

    def answer(request: dict[str, Any]) -> Any:
        arrived.append(time.monotonic())
        return either(request)

    with judging(answer) as (url, _):
        given = settings(url, per_minute=40, tries=1)
        given["run"] |= {"async_steps": 1, "samplers": 2}
        train(parse_config(given), folder=tmp_path / "run", console=Console(file=io.StringIO()))
    gaps = [later - earlier for earlier, later in itertools.pairwise(sorted(arrived))]
    assert len(arrived) >= 6
    assert min(gaps) > 0.75
    assert (max(arrived) - min(arrived)) / (len(arrived) - 1) > 1.45
