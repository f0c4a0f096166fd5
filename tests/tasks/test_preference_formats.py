"""Preference data in TRL's formats: what they mean here, how a format is known, and what is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from grouprl.core.errors import InputError
from grouprl.records.examples import Chat
from grouprl.tasks import load_task
from grouprl.tasks.adapters.preferences.preference_rows import Names, common_prompt, format_of
from grouprl.testing import check_stored_rows


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def task_of(folder: Path, rows: Sequence[Any], **options: Any) -> Any:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_task({"name": "pairs", "path": str(path), "eval_fraction": 0, **options})


def first(task: Any) -> tuple[Any, list[tuple[str, float]]]:
    """The first prompt, and its completions with their rewards."""
    example = task.example("train", 0)
    return example.prompt, [(row.completion, row.reward) for row in task.stored_rows(example)]


TALK = [user("hi"), said("hello"), user("sky?")]
FORMATS = {
    "explicit": (
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        "The sky is",
        [(" blue.", 1.0), (" green.", 0.0)],
    ),
    "implicit": (
        {"chosen": "The sky is blue.", "rejected": "The sky is green."},
        "The sky is",
        [(" blue.", 1.0), (" green.", 0.0)],
    ),
    "helpful": (
        {"chosen": "\n\nHuman: Sky?\n\nAssistant: Blue.", "rejected": "\n\nHuman: Sky?\n\nAssistant: Green."},
        "\n\nHuman: Sky?\n\nAssistant:",
        [(" Blue.", 1.0), (" Green.", 0.0)],
    ),
    "conversation": (
        {"prompt": TALK, "chosen": [said("blue")], "rejected": [said("green")]},
        tuple(TALK),
        [("blue", 1.0), ("green", 0.0)],
    ),
    "conversation inside": (
        {"chosen": [*TALK, said("blue")], "rejected": [*TALK, said("green")]},
        tuple(TALK),
        [("blue", 1.0), ("green", 0.0)],
    ),
    "prompt repeated as text": (
        {"prompt": "sky?", "chosen": [user("sky?"), said("blue")], "rejected": [user("sky?"), said("green")]},
        (user("sky?"),),
        [("blue", 1.0), ("green", 0.0)],
    ),
    "one a beginning of the other": (
        {"chosen": [user("a"), said("b")], "rejected": [user("a"), said("b"), user("c"), said("d")]},
        (user("a"),),
        [("b", 1.0), ("assistant: b\nuser: c\nassistant: d", 0.0)],
    ),
    "label": ({"prompt": "2+2=", "completion": "4", "label": True}, "2+2=", [("4", 1.0)]),
    "label of a conversation": (
        {"prompt": [user("2+2=")], "completion": [said("5")], "label": False},
        (user("2+2="),),
        [("5", 0.0)],
    ),
    "demonstration": ({"prompt": "2+2=", "completion": "4"}, "2+2=", [("4", 1.0)]),
    "scores": (
        {"prompt": "p", "completions": ["a", "b", "c"], "scores": [0.5, -1, 3]},
        "p",
        [("a", 0.5), ("b", -1.0), ("c", 3.0)],
    ),
    "ranking": (
        {"prompt": "p", "completions": ["a", "b", "c"], "ranking": [2, 3, 1]},
        "p",
        [("a", 1.0), ("b", 0.0), ("c", 2.0)],
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_means_what_it_means_in_trl(name: str, tmp_path: Path) -> None:
    row, prompt, completions = FORMATS[name]
    task = task_of(tmp_path, [row])
    assert first(task) == (prompt, completions)
    check_stored_rows(task)


def test_the_first_columns_that_fit_decide_the_format() -> None:
    columns = ["prompt", "chosen", "rejected", "completion", "label", "extra"]
    found = []
    for gone in (None, "prompt", "chosen", "label"):
        kept = [name for name in columns if name != gone]
        columns = kept if gone != "prompt" else columns
        found.append(format_of(dict.fromkeys(kept, ""), Names(), "line 1").name)
    assert found == ["pairs", "pairs with their prompt inside", "labels", "demonstrations"]


@pytest.mark.parametrize(
    ("chosen", "rejected", "shared"),
    [
        ("The sky is blue.", "The sky is green.", 10),  # the space goes with the completions
        ("ab", "ac", 1),
        ("ab", "abcd", 1),  # one begins the other: its last character is its completion
        ("same", "same", 3),
        ("x ", "y ", 0),  # nothing shared: TRL looks at the last character, a space here, and takes "x"
        ("", "y", 0),
        ([1, 2, 3], [1, 2, 4], 2),
    ],
)
def test_the_prompt_is_what_two_completions_begin_with(chosen: Any, rejected: Any, shared: int) -> None:
    assert common_prompt(chosen, rejected) == shared


def test_tools_and_turns_of_a_conversation_are_kept(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
    call = {"type": "function", "function": {"name": "clock", "arguments": {}}}
    calls = {"role": "assistant", "tool_calls": [call]}
    turns = [calls, {"role": "tool", "content": "noon"}, said("It is noon.")]
    for tools in ([tool], json.dumps([tool])):
        row = {"prompt": [user("time?")], "chosen": turns, "rejected": [said("No idea.")], "tools": tools}
        task = task_of(tmp_path, [row])
        example = task.example("train", 0)
        assert isinstance(example.prompt, Chat)
        assert list(example.prompt.tools) == [tool]
        winner, loser = task.stored_rows(example)
        assert winner.messages == ({**calls, "content": ""}, *turns[1:])
        assert (loser.messages, loser.completion) == (None, "No idea.")


REFUSED = [
    ({"text": "hello"}, "columns text", "chosen, rejected"),
    ({"prompt": "p", "chosen": "a"}, "prompt, chosen", "rejected"),
    ({"chosen": "apple", "rejected": "pear"}, "no common beginning", "leave the row out"),
    ({"chosen": "apple", "rejected": [said("a")]}, "both are conversations", ""),
    ({"prompt": "p", "completions": ["a"], "labels": [True]}, "each step", "step_labels:FILE"),
    ({"prompt": "p", "completions": ["a", "b"], "scores": [1]}, "2 completions and 1 scores", ""),
    ({"prompt": "p", "completions": ["a"], "scores": [1]}, "at least two", ""),
    ({"prompt": "p", "completions": ["a", "b"], "scores": [1, True]}, "A score is a finite number", ""),
    ({"prompt": "p", "completions": ["a", "b"], "scores": [1, 1]}, "is better", "ties: drop"),
    ({"prompt": "p", "completions": ["a", "b"], "ranking": [0, 1]}, "from 1, the best", ""),
    ({"prompt": "p", "completions": ["a", "b"], "ranking": [1, 2], "scores": [1, 2]}, "Leave one out", ""),
    ({"prompt": "p", "completion": "c", "label": 2}, "label is true or false", ""),
    ({"prompt": "p", "completion": "c", "label": None}, "label is true or false", ""),
    ({"prompt": "p", "completion": "", "label": 1}, "A completion is text", ""),
    ({"prompt": "p", "chosen": "a", "rejected": "a"}, "are the same", "ties: half"),
    ({"prompt": "p", "chosen": "a", "rejected": "b", "image": "x.png"}, "column 'image'", "pictures"),
    ({"prompt": [user("p")], "chosen": [user("p"), said("a")], "rejected": [said("b")]}, "messages of 'prompt'", ""),
    ({"chosen": [user("a"), user("b"), said("x")], "rejected": [user("a"), user("c"), said("y")]}, "role 'user'", ""),
    ({"prompt": [user("p")], "chosen": [said("a"), user("b")], "rejected": [said("c")]}, "ends with", ""),
    ({"prompt": [user("p")], "chosen": [said("")], "rejected": [said("c")]}, "is empty", ""),
    ({"prompt": [user("p")], "chosen": [said("a")], "rejected": [said("c")], "tools": "{"}, "not JSON", ""),
    ({"prompt": [user("p")], "chosen": "a", "rejected": "c", "tools": "[" * 100_000}, "not JSON", "nested too deeply"),
    ({"prompt": [user("p")], "chosen": "a", "rejected": "c", "tools": '[{"x": NaN}]'}, "not JSON", "NaN"),
    ({"prompt": "p", "completions": ["a", "b"], "scores": [10**400, 1]}, "A score is a finite number", "1e+15"),
    ({"prompt": "p", "completions": ["a", "b"], "scores": [1e300, 1]}, "A score is a finite number", "1e+15"),
    ({"prompt": "p", "completions": ["a", "b"], "ranking": [10**400, 1]}, "A rank is a finite number", "1e+15"),
    ({"prompt": "p", "chosen": "a", "rejected": "b", "margin": 10**400}, "A margin is a finite number", "1e+15"),
    ({"prompt": "p", "chosen": "a", "rejected": "b", "margin": "three"}, "A margin is a finite number", ""),
    ({"prompt": "p", "chosen": "a", "rejected": "b", "margin": "1_0"}, "A margin is a finite number", ""),
    ({"prompt": "p", "chosen": "a", "rejected": "b", "margin": "nan"}, "A margin is a finite number", ""),
]


@pytest.mark.parametrize(("row", "what", "more"), REFUSED)
def test_what_is_no_preference_is_refused_by_its_row(row: Any, what: str, more: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as found:
        task_of(tmp_path, [row])
    assert what in str(found.value)
    assert more in str(found.value)
    assert "line 1 of" in str(found.value)


def test_a_later_row_without_the_columns_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "completion": "c", "label": 1}, {"prompt": "p", "completion": "c"}]
    with pytest.raises(InputError, match="'label' is missing in line 2"):
        task_of(tmp_path, rows)


def test_pictures_of_later_rows_are_refused_and_empty_cells_are_none(tmp_path: Path) -> None:
    """Mixed data sets have the column throughout and pictures in some rows alone."""
    pair = {"prompt": "p", "chosen": "a", "rejected": "b"}
    for nothing in (None, [], ""):
        assert texts(task_of(tmp_path, [{**pair, "images": nothing}])) == [["a", "b"]]
    for rows in ([pair, {**pair, "images": ["x.png"]}], [{**pair, "image": None}, {**pair, "image": "x.png"}]):
        with pytest.raises(InputError, match=r"line 2 of .* has the column 'images?'"):
            task_of(tmp_path, rows)


TIED = [
    {"prompt": "p", "chosen": "a", "rejected": "b", "even": False},
    {"prompt": "q", "chosen": "c", "rejected": "d", "even": True},
]


def texts(task: Any) -> list[list[str]]:
    size = task.size("train")
    return [[row.completion for row in task.stored_rows(task.example("train", i))] for i in range(size)]


def test_ties_are_refused_left_out_or_counted_both_ways(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"No completion in line 2 of .* is better"):
        task_of(tmp_path, TIED, tie="even")
    dropped = task_of(tmp_path, TIED, tie="even", ties="drop")
    assert texts(dropped) == [["a", "b"]]
    assert "1 groups without a better completion are left out" in dropped.notes[-1]
    half = task_of(tmp_path, TIED, tie="even", ties="half")
    assert texts(half) == [["a", "b"], ["a", "b"], ["c", "d"], ["d", "c"]]
    ids = [half.example("train", i).id for i in range(4)]
    assert len(set(ids)) == 4


def test_ties_and_second_copies_are_not_evaluated_on(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n}", "chosen": "a", "rejected": "b", "even": n % 3 == 0} for n in range(30)]
    task = task_of(tmp_path, rows, tie="even", ties="half", eval_fraction=0.5)
    seen = [task.example("eval", i).columns for i in range(task.size("eval"))]
    assert len({row["prompt"] for row in seen}) == len(seen) > 0
    assert not any(row["even"] for row in seen)


def test_parquet_csv_and_saved_data_sets_give_the_same_rows(tmp_path: Path) -> None:
    """One row in every kind of file: the same prompt and completions."""
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": f"{n}?", "completion": "yes", "label": n % 2 == 0} for n in range(4)]
    data = datasets.Dataset.from_list(rows)
    data.to_parquet(str(tmp_path / "a.parquet"))
    data.to_csv(str(tmp_path / "a.csv"))
    data.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"good": data}).save_to_disk(str(tmp_path / "splits"))
    want = [[("yes", 1.0)], [("yes", 0.0)]] * 2
    plain = task_of(tmp_path, rows)
    for path, options in {"a.parquet": {}, "a.csv": {}, "saved": {}, "splits": {"train_split": "good"}}.items():
        task = load_task({"name": f"pairs:{tmp_path / path}", "eval_fraction": 0, **options})
        found = [task.example("train", i) for i in range(4)]
        assert [[(r.completion, r.reward) for r in task.stored_rows(e)] for e in found] == want
        assert [e.prompt for e in found] == [plain.example("train", i).prompt for i in range(4)]


def test_messages_of_a_parquet_file_are_messages(tmp_path: Path) -> None:
    """Columns of nested messages fill absent keys with null; these are not keys."""
    datasets = pytest.importorskip("datasets")
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    rows = [
        {"chosen": [user("a"), {**said("b"), "tool_calls": [call]}, said("c")], "rejected": [user("a"), said("d")]},
        {"chosen": [user("a"), said("b")], "rejected": [user("a"), said("d")]},
    ]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "talks.parquet"))
    task = load_task({"name": f"pairs:{tmp_path / 'talks.parquet'}", "eval_fraction": 0})
    assert task.example("train", 1).prompt == (user("a"),)
    assert [row.completion for row in task.stored_rows(task.example("train", 1))] == ["b", "d"]


def test_a_csv_file_holds_no_lists(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "a.csv").write_text('prompt,completions,scores\np,"[1]","[2]"\n')
    with pytest.raises(InputError, match="A CSV file holds no lists"):
        load_task({"name": f"pairs:{tmp_path / 'a.csv'}", "eval_fraction": 0})


@pytest.mark.parametrize("write", [str, json.dumps])
def test_messages_written_out_as_text_are_not_learned_as_text(tmp_path: Path, write: Callable[[object], str]) -> None:
    """A data frame of conversations becomes so when it is saved as CSV."""
    pytest.importorskip("datasets")
    talk = {name: write([{"content": name, "role": "assistant"}]) for name in ("chosen", "rejected")}
    with (tmp_path / "a.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["prompt", *talk])
        table.writeheader()
        table.writerow({"prompt": write([{"role": "user", "content": "q"}]), **talk})
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "q", **talk}))
    for name in ("a.csv", "a.jsonl"):
        with pytest.raises(InputError, match=r"chat messages written out as text.*JSON lines and Parquet hold them"):
            load_task({"name": f"pairs:{tmp_path / name}", "eval_fraction": 0})
    plain = {"prompt": "q", "chosen": "[{'rolex': 1}]", "rejected": "[{'role': 1}] is a list"}
    (tmp_path / "b.jsonl").write_text(json.dumps(plain))
    assert load_task({"name": f"pairs:{tmp_path / 'b.jsonl'}", "eval_fraction": 0}).size("train") == 1


def test_numbers_of_a_csv_file_are_texts(tmp_path):
    pytest.importorskip("datasets")
    path = tmp_path / "rows.csv"
    path.write_text("prompt,chosen,rejected,margin\nsky?,blue,green,0.5\ngrass?,green,blue,2\n")
    task = load_task({"name": "pairs", "path": str(path), "eval_fraction": 0})
    found = {task.example("train", i).prompt: task.stored_rows(task.example("train", i)) for i in range(2)}
    assert [dict(row.components) for row in found["sky?"]] == [{"margin": 0.5}] * 2
    assert [dict(row.components) for row in found["grass?"]] == [{"margin": 2.0}] * 2
    path.write_text("prompt,chosen,rejected,margin\nsky?,blue,green,nan\n")
    with pytest.raises(InputError, match="A margin is a finite number"):
        load_task({"name": "pairs", "path": str(path), "eval_fraction": 0})


def test_a_column_reference_that_is_no_completion_is_left_unread(tmp_path: Path) -> None:
    row = {"prompt": "The sky is", "chosen": " blue.", "rejected": " green.", "reference": 17}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    task: Any = load_task({"name": f"pairs:{tmp_path / 'rows.jsonl'}", "eval_fraction": 0, "reference": None})
    assert [each.completion for each in task.stored_rows(task.example("train", 0))] == [" blue.", " green."]
    with pytest.raises(InputError, match="reference"):
        load_task({"name": f"pairs:{tmp_path / 'rows.jsonl'}", "eval_fraction": 0})
    (tmp_path / "rows.jsonl").write_text(json.dumps({**row, "gold": " deep blue."}))
    task = load_task({"name": f"pairs:{tmp_path / 'rows.jsonl'}", "eval_fraction": 0, "reference": "gold"})
    assert [each.reward for each in task.stored_rows(task.example("train", 0))] == [1.0, 0.0, 2.0]
