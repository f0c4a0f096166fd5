"""Preference data from files of every kind: the same rows mean the same, whatever holds them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from grouprl.core.errors import InputError
from grouprl.tasks import load_task
from grouprl.tasks.adapters.jsonl import array_in


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def tool(name: str, argument: str) -> dict[str, Any]:
    properties = {argument: {"type": "string"}}
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }


def calls(name: str, **arguments: str) -> dict[str, Any]:
    return {**said(""), "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}]}


CLOCK, ADD = tool("clock", "zone"), tool("add", "a")
WITH_TOOLS = [
    {"prompt": [user("Time?")], "chosen": [calls("clock", zone="utc")], "rejected": [said("?")], "tools": [CLOCK]},
    {"prompt": [user("Sum?")], "chosen": [calls("add", a="1")], "rejected": [said("!")], "tools": [ADD]},
]
STEPS = [
    {"prompt": [user("Time?")], "completions": ["utc", "noon"], "labels": [True, False], "tools": [CLOCK]},
    {"prompt": [user("Sum?")], "completions": ["1", "2"], "labels": [True, True], "tools": [ADD]},
]


def meaning(task: Any) -> list[Any]:
    """Prompts, tools and rows of a task, in the order of the file."""
    examples = [task.example("train", i) for i in range(task.size("train"))]
    return [
        (e.prompt, getattr(e.prompt, "tools", ()), [(r.completion, r.reward, r.messages) for r in task.stored_rows(e)])
        for e in examples
    ]


def loaded(path: Path, name: str = "pairs", **options: Any) -> Any:
    return load_task({"name": f"{name}:{path}", "eval_fraction": 0, **options})


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize(("name", "rows"), [("pairs", WITH_TOOLS), ("step_labels", STEPS)])
def test_tools_of_other_rows_leave_no_nulls_behind(name: str, rows: list[Any], tmp_path: Path) -> None:
    """A table has one type for a column: the parameters and arguments of all tools, null where a row has none."""
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "rows.parquet"))
    plain = meaning(loaded(lines(tmp_path / "rows.jsonl", rows), name))
    assert meaning(loaded(tmp_path / "rows.parquet", name)) == plain
    assert [tools for _, tools, _ in plain] == [(CLOCK,), (ADD,)]


def test_a_file_that_is_one_array_is_read(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n}", "chosen": "a", "rejected": "b"} for n in range(3)]
    (tmp_path / "a.json").write_text("\ufeff \n" + json.dumps(rows, indent=2))
    task = loaded(tmp_path / "a.json")
    assert meaning(task) == meaning(loaded(lines(tmp_path / "a.jsonl", rows)))
    assert task.label("train", 1) == f"object 2 of {tmp_path / 'a.json'}"
    assert array_in(str(tmp_path / "a.jsonl")) is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[{}", "is not JSON: expecting ',' delimiter"),
        ("[{}, 3]", "Object 2 of .* is a JSON int"),
        ("[]", "no prompts"),
    ],
)
def test_an_array_of_anything_else_is_refused(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=what):
        loaded(tmp_path / "a.json")


def test_a_file_of_held_out_rows_needs_no_split_of_the_name_that_training_has(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": f"q{n}", "chosen": "a", "rejected": "b"} for n in range(3)]
    datasets.DatasetDict({"train_prefs": datasets.Dataset.from_list(rows)}).save_to_disk(str(tmp_path / "saved"))
    held_out = lines(tmp_path / "eval.jsonl", [{"prompt": "other", "chosen": "a", "rejected": "b"}])
    task: Any = load_task({"name": f"pairs:{tmp_path / 'saved'}", "train_split": "train_prefs", "eval": str(held_out)})
    assert (task.size("train"), task.size("eval")) == (3, 1)


def test_whole_conversations_written_out_as_text_are_refused(tmp_path: Path) -> None:
    """What both begin with would be taken for the prompt, brackets and all."""
    pytest.importorskip("datasets")
    talks = {name: str([user("q"), said(name)]) for name in ("chosen", "rejected")}
    with (tmp_path / "a.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, talks)
        table.writeheader()
        table.writerow(talks)
    with pytest.raises(InputError, match=r"column 'chosen' in row 0 .*chat messages written out as text"):
        loaded(tmp_path / "a.csv")
    lines(tmp_path / "a.jsonl", [{"prompt": str([user("q")]), "completion": "yes", "label": True}])
    with pytest.raises(InputError, match="column 'prompt' in line 1"):
        loaded(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    "other", ["same", [said("same")], [{"role": "assistant", "content": [{"type": "text", "text": "same"}]}]]
)
def test_a_pair_that_says_the_same_is_a_tie_in_whatever_form(other: Any, tmp_path: Path) -> None:
    rows = [{"prompt": [user("q")], "chosen": [said("same")], "rejected": other}]
    with pytest.raises(InputError, match=r"Both completions in line 1 of .* are the same"):
        loaded(lines(tmp_path / "a.jsonl", rows))
    rows.append({"prompt": [user("p")], "chosen": [said("a")], "rejected": [said("b")]})
    assert [prompt for prompt, _, _ in meaning(loaded(lines(tmp_path / "a.jsonl", rows), ties="drop"))] == [
        (user("p"),)
    ]
