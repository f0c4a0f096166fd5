"""Pairs as questions to a judge: what is asked is what `reward.judge` asks, and only the chosen completion is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grouprl.core.errors import InputError
from grouprl.rewards.judging.comparing import ComparedPair
from grouprl.rewards.judging.judge_client import JudgeClient
from grouprl.rewards.judging.pair_judge import PairJudge
from grouprl.rewards.judging.right_verdict import right_verdict
from grouprl.tasks import load_task
from judge_server import judging

ROWS: list[dict[str, Any]] = [
    {"prompt": f"{n} or {n + 1}?", "chosen": str(n + 1), "rejected": str(n)} for n in range(60)
]
TALK = [{"role": "user", "content": "Sky?"}]
SPOKEN = {
    "prompt": TALK,
    "chosen": [{"role": "assistant", "content": "Blue."}],
    "rejected": [{"role": "assistant", "content": "Green."}],
}
INSIDE = {"chosen": [*TALK, *SPOKEN["chosen"]], "rejected": [*TALK, *SPOKEN["rejected"]]}


def task_of(folder: Path, rows: list[dict[str, Any]], **options: Any):
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_task({"name": f"judge:{path}", "eval_fraction": 0, **options})


def shown(prompt: Any) -> dict[str, Any]:
    return json.loads(prompt[-1]["content"])


def test_the_named_completion_is_the_chosen_one_and_either_order_is_as_frequent(tmp_path):
    task, first = task_of(tmp_path, ROWS, chat=True), 0
    for number, row in enumerate(ROWS):
        example = task.example("train", number)
        entries = {each["id"]: each["text"] for each in shown(example.prompt)["completions"]}
        assert entries[example.columns["better"]] == row["chosen"]
        assert entries[example.columns["worse"]] == row["rejected"]
        first += next(iter(entries)) == example.columns["better"]
        assert json.loads(task.solution(example)) == {"better": example.columns["better"]}
    assert 20 <= first <= 40


@pytest.mark.parametrize("row", [ROWS[0], SPOKEN, INSIDE])
def test_a_run_asks_its_judge_word_for_word_what_the_judge_learned(row, tmp_path):
    example = task_of(tmp_path, [row], chat=True, rubric="Be right.").example("train", 0)
    texts = [each["text"] for each in shown(example.prompt)["completions"]]
    prompt = row["prompt"] if isinstance(row.get("prompt"), str) else TALK
    with judging(lambda request: json.dumps({"better": example.columns["better"]})) as (url, got):
        client = JudgeClient(url, model="m", key_env="", timeout=5.0, tries=2)
        judge = PairJudge(client, rubric="Be right.", both_orders=False)
        assert judge.compare([ComparedPair(prompt, *texts, {})])[0] in (0.0, 1.0)
    assert got[0]["messages"] == [dict(each) for each in example.prompt]


def test_a_model_without_a_template_is_asked_in_one_text(tmp_path):
    one, told = (task_of(tmp_path, ROWS[:1], chat=chat).example("train", 0) for chat in (False, True))
    assert one.prompt == "\n\n".join(each["content"] for each in told.prompt) + "\n"


@pytest.mark.parametrize(
    ("reply", "rewards"),
    [
        ('{"why": "so", "better": "0a"}', (1, 1, 1)),
        ('```json\n{"better": "0a"}\n```', (1, 1, 1)),
        ('{"better": "0b"}', (1, 0, 0)),
        ('{"better": "neither"}', (1, 0, 0)),
        ('{"better": "0a", "better": "0b"}', (0, 0, 0)),
        ('{"better": "0a"} {"better": "0b"}', (0, 0, 0)),
        ('["0a"]', (0, 0, 0)),
        ("0a", (0, 0, 0)),
        ("", (0, 0, 0)),
    ],
)
def test_a_reply_is_read_as_that_of_a_judge(reply, rewards):
    found = right_verdict(reply, "0a", "0b")
    assert (found["format"], found["accuracy"], found["correct"]) == rewards


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "Neither completion"),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "even": True}, "Neither completion"),
        ({"prompt": "a", "completion": "b", "label": True}, "and not 'chosen'"),
        ({"prompt": "a", "chosen": "b", "rejected": ""}, "'rejected'"),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "image": "x.png"}, "image"),
    ],
)
def test_rows_that_are_no_pairs_are_refused_by_name(row, words, tmp_path):
    with pytest.raises(InputError, match=words) as caught:
        task_of(tmp_path, [{**ROWS[0], "even": False}, {"even": False, **row}], tie="even")
    assert "line 2" in str(caught.value)


def test_ties_are_left_out_if_that_is_asked_for(tmp_path):
    rows = [ROWS[0], {"prompt": "a", "chosen": "b", "rejected": "b"}, ROWS[1]]
    task = task_of(tmp_path, rows, drop_ties=True)
    assert task.size("train") == 2
    assert task.label("train", 1).startswith("line 3")


def test_the_system_message_is_the_judges_own(tmp_path):
    with pytest.raises(InputError, match="rubric"):
        task_of(tmp_path, ROWS, system="Be brief.")
