"""A judge that compares pairs, behind a real endpoint: both orders, several replies, abstentions, what is kept."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from grouprl.core.errors import InputError
from grouprl.rewards import score
from grouprl.rewards.judging import judge_client
from grouprl.rewards.judging.comparing import ComparedPair, FailedComparison
from grouprl.rewards.judging.judge import GroupPlace, placed
from grouprl.rewards.judging.judge_client import JudgeClient, NoAnswer
from grouprl.rewards.judging.pair_judge import PairJudge
from grouprl.rewards.judging.pair_text import read_better
from grouprl.rewards.judging.verdict_store import VerdictStore
from judge_server import judging

PROMPT = "Count to three."


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(judge_client.time, "sleep", lambda _: None)


def judge_at(url: str, **settings: Any) -> PairJudge:
    return PairJudge(JudgeClient(url, model="m", key_env="", timeout=5.0, tries=2), **settings)


def pair(first: str, second: str) -> ComparedPair:
    return ComparedPair(PROMPT, first, second, {})


def entries(request: dict[str, Any]) -> list[dict[str, str]]:
    return json.loads(request["messages"][1]["content"])["completions"]


def longer(request: dict[str, Any]) -> str:
    one, two = entries(request)
    same = len(one["text"]) == len(two["text"])
    return json.dumps(
        {"why": "length", "better": "neither" if same else max(one, two, key=lambda e: len(e["text"]))["id"]}
    )


def first_shown(request: dict[str, Any]) -> str:
    return json.dumps({"better": entries(request)[0]["id"]})


def test_each_pair_is_shown_in_both_orders_under_names_that_tell_nothing():
    with judging(longer) as (url, got):
        assert judge_at(url).compare([pair("1 2 3", "1"), pair("1", "1 2"), pair("a", "b")]) == [1.0, 0.0, 0.5]
    texts = [tuple(e["text"] for e in entries(request)) for request in got]
    assert sorted(texts) == sorted([("1 2 3", "1"), ("1", "1 2 3"), ("1", "1 2"), ("1 2", "1"), ("a", "b"), ("b", "a")])
    assert all(json.loads(r["messages"][1]["content"])["prompt"] == [{"role": "user", "content": PROMPT}] for r in got)
    assert len({e["id"] for request in got for e in entries(request)}) == 12


def test_a_judge_that_takes_what_it_reads_first_decides_nothing_and_is_found_out():
    with judging(first_shown) as (url, _):
        judge = judge_at(url)
        assert judge.compare([pair("x", "y")]) == [0.5]
        assert judge.notes() == {"judge_agreement": 0.5, "judge_flips": 1.0, "judge_unsure": 0.0} | {
            "judge_requests": 2,
            "judge_kept": 0,
        }
        assert judge.notes() == {}
        assert judge_at(url, both_orders=False).compare([pair("x", "y")]) == [1.0]


def test_equal_texts_are_not_asked_about():
    with judging(longer) as (url, got):
        assert judge_at(url).compare([pair("x", "x")]) == [0.5]
    assert got == []


def test_an_abstention_is_no_verdict_and_not_a_loss():
    def unsure_of_y(request: dict[str, Any]) -> str:
        return '{"better": "unsure"}' if "y" in [e["text"] for e in entries(request)] else longer(request)

    with judging(unsure_of_y) as (url, _):
        judge = judge_at(url)
        assert judge.compare([pair("x", "y"), pair("xx", "z")]) == [None, 1.0]
        assert judge.notes()["judge_unsure"] == 0.5
        places = [GroupPlace(0, n, PROMPT) for n in range(3)]
        found = score(judge, ["xx", "z", "y"], placed(judge, [{}] * 3, places), ids=list("abc"))
    assert found.reward_b[:2].tolist() == [1.0, 0.0]  # each by the one comparison that was decided
    assert found.status_b.tolist() == ["ok", "ok", "not_applicable"], "an abstention is no failure of the reward"
    assert "abstained" in found.problems[0].what


@pytest.mark.parametrize(
    ("reply", "status", "said"),
    [
        ((401, "no such key"), "error", "answered 401: no such key"),
        ("the first one!", "error", "the judge's reply is not JSON"),
        ((200, '{"choices": []}'), "error", "sent no completion"),
    ],
)
def test_a_row_whose_comparisons_all_failed_says_why(reply, status, said):
    with judging(lambda request: reply) as (url, _):
        judge = judge_at(url)
        places = [GroupPlace(0, n, PROMPT) for n in range(2)]
        found = score(judge, ["x", "y"], placed(judge, [{}] * 2, places), ids=list("ab"))
    assert found.status_b.tolist() == [status] * 2
    assert all(said in problem.what for problem in found.problems)


def test_one_reply_of_each_order_is_enough():
    def fails_once(request: dict[str, Any]) -> Any:
        return (400, "no") if request["seed"] == 0 else longer(request)

    with judging(fails_once) as (url, _):
        assert judge_at(url, samples=2).compare([pair("x", "yy")]) == [0.0]
        assert judge_at(url, samples=1).compare([pair("x", "yy")]) == [None]


def test_replies_are_drawn_with_seeds_of_their_own_and_averaged():
    def by_seed(request: dict[str, Any]) -> str:
        one, two = sorted(entries(request), key=lambda e: e["text"])
        return json.dumps({"better": (one if request["seed"] % 3 else two)["id"]})

    with judging(by_seed) as (url, got):
        judge = judge_at(url, samples=3, seed=6)
        assert judge.compare([pair("x", "y")]) == [pytest.approx(2 / 3)]
        assert sorted(request["seed"] for request in got) == [6, 6, 7, 7, 8, 8]
        assert judge.notes()["judge_agreement"] == pytest.approx(2 / 3)


def test_answers_are_kept_by_prompt_model_and_seed(tmp_path):
    def unsure_of_y(request: dict[str, Any]) -> str:
        return '{"better": "unsure"}' if "y" in [e["text"] for e in entries(request)] else longer(request)

    with judging(unsure_of_y) as (url, got):
        asked = [pair("x", "y"), pair("xx", "z")]
        first = judge_at(url, store=VerdictStore(tmp_path)).compare(asked)
        count = len(got)
        again = judge_at(url, store=VerdictStore(tmp_path))
        assert again.compare(asked) == first == [None, 1.0]
        assert again.notes()["judge_requests"] == 0
        assert len(got) == count
        judge_at(url, seed=1, store=VerdictStore(tmp_path)).compare(asked[1:])
        assert len(got) == count + 2  # another seed is another question


def test_nonsense_is_asked_about_again_and_then_no_verdict():
    with judging(lambda request: "the first one!") as (url, got):
        assert judge_at(url).compare([pair("x", "y")]) == [None]
    assert len(got) == 4
    assert "Reply with the JSON alone" in got[1]["messages"][2]["content"]
    with judging(lambda request: (500, "down")) as (url, got):
        assert judge_at(url, both_orders=False).compare([pair("x", "y")]) == [None]
    assert len(got) == 2


@pytest.mark.parametrize(
    "reply",
    [
        *("", "[]", '{"better": "c"}', '{"better": 1}', '{"better": "a", "score": 1}', "null"),
        *('{"better": "a", "better": "b"}', '{"better": ["a", "b"]}', '{"better": "a"}\n{"better": "b"}'),
        '```json\n{"better": "a"}\n```\n```json\n{"better": "b"}\n```',
        *("A is better.", "Lo mejor es a.", '<think>{"better": "a"}</think>', '<think>{"better": "a"}', "\ud800"),
    ],
)
def test_replies_without_a_verdict_are_refused(reply):
    with pytest.raises(NoAnswer):
        read_better(reply, ("a", "b"))


@pytest.mark.parametrize(
    "around",
    [
        *("{}", "```json\n{}\n```", "```JSON\r\n{}\r\n```", "``` {} ```", "\ufeff{}", "\n\n{}\n"),
        *("<think>b, no: a</think>\n{}", "<think>b</think>```json\n{}```"),
    ],
)
def test_a_verdict_is_read_in_a_block_and_behind_thinking(around):
    assert read_better(around.replace("{}", '{"why": "x", "better": "b"}'), ("a", "b")) == 0.0


def test_a_block_without_end_is_read_at_once():
    """Judges held to JSON fill their budget with blank lines; a pattern may not go through all ways to divide them."""
    begin = time.monotonic()
    for blank in ("\n", " ", " \n"):
        with pytest.raises(NoAnswer):
            read_better("```json" + blank * 200_000 + "x", ("a", "b"))
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((200, b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n'), "did not send JSON"),
        ((200, b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'), "did not send JSON"),
        ((200, b""), "did not send JSON"),
        ((200, b'{"choices": [{"message": {"content": null, "reasoning_content": "a"}}]}'), "without text"),
        ((200, b'{"choices": [{"message": {"content": "{"}, "finish_reason": "length"}]}'), "increase reward"),
        ((200, b'{"choices": [{"message": {"content": ""}}]}'), "reply is not JSON"),
        ((200, b'{"error": {"message": "overloaded"}}'), "sent no completion"),
        ((429, b"\xff slow", {"Retry-After": "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"}), "answered 429"),
        ((503, b"<html>"), "answered 503"),
    ],
)
def test_an_endpoint_that_speaks_otherwise_costs_the_pair_and_not_the_run(reply, said):
    with judging(lambda request: reply) as (url, _):
        judge = judge_at(url)
        (found,) = judge.judged([pair("x", "y")])
        assert isinstance(found, FailedComparison)
        assert said in found.what
        assert "judge_flips" not in judge.notes()


def test_an_address_is_checked():
    with pytest.raises(InputError, match=r"reward\.judge\.url"):
        judge_at("localhost:8000")
