"""Pairs under constraints: which are turned round, what wins, and rows that are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grouprl import InputError
from grouprl.tasks import load_task
from grouprl.tasks.adapters.preferences.reversed_rows import turned_rows

COLUMNS = ("prompt", "chosen", "rejected")
ROW: dict[str, Any] = {
    "prompt": "Tell.",
    "constraints": [{"text": f"Do {x}.", "negation": f"Do not {x}."} for x in "abc"],
    "chosen": "w",
    "rejected": "l",
    "chosen_met": [True, False, True],
    "rejected_met": [False, False, True],
}


def test_the_winner_keeps_all_and_the_loser_fewer():
    first, second = turned_rows(ROW, "both", COLUMNS, "row 1")
    assert (first["prompt"], first["chosen"], first["rejected"]) == ("Tell.\nDo a.\nDo not b.\nDo c.", "w", "l")
    assert (second["prompt"], second["chosen"], second["rejected"]) == ("Tell.\nDo not a.\nDo not b.\nDo c.", "l", "w")
    assert list(turned_rows(ROW, "chosen", COLUMNS, "row 1")) == [first]


def test_equal_verdicts_are_no_pair_and_full_ones_change_nothing():
    assert list(turned_rows({**ROW, "rejected_met": ROW["chosen_met"]}, "both", COLUMNS, "row 1")) == []
    (row,) = turned_rows({**ROW, "chosen_met": [True] * 3}, "chosen", COLUMNS, "row 1")
    assert row["prompt"] == "Tell.\nDo a.\nDo b.\nDo c."


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"constraints": None}, "row 1 has no constraints"),
        ({"constraints": [{"text": "Do a."}]}, "row 1 has no constraints"),
        ({"constraints": ["Do a."]}, "row 1 has no constraints"),
        ({"chosen_met": [True]}, "row 1 has 3 constraints, and 1 verdicts"),
        ({"rejected_met": [1, 0, 1]}, "list of true and false"),
        ({"prompt": [{"role": "user", "content": "Tell."}]}, "plain text"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(changed, words):
    with pytest.raises(InputError, match=words):
        list(turned_rows({**ROW, **changed}, "both", COLUMNS, "row 1"))


def task_of(folder: Path, *rows: dict[str, Any], **options: Any):
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_task({"name": f"pairs:{path}", "eval_fraction": 0.0, **options})


def test_a_file_of_pairs_is_turned_as_it_is_read(tmp_path):
    task = task_of(tmp_path, ROW, {**ROW, "rejected_met": ROW["chosen_met"]}, reverse="both")
    examples = [task.example("train", i) for i in range(2)]
    assert len({example.id for example in examples}) == 2
    assert {task.stored_rows(example)[0].completion for example in examples} == {"w", "l"}
    assert all("Do not b." in example.prompt for example in examples)
    plain = task_of(tmp_path, ROW)
    assert plain.example("train", 0).prompt == "Tell."


def test_what_cannot_be_turned_says_so(tmp_path):
    with pytest.raises(InputError, match="no pair that keeps different constraints"):
        task_of(tmp_path, {**ROW, "rejected_met": ROW["chosen_met"]}, reverse="chosen")
    with pytest.raises(InputError, match="reverse is both and ties is half"):
        task_of(tmp_path, ROW, reverse="both", ties="half")
