"""The schedule of slow tests: quick ones always run, and a few commits together run every slow one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schedule import (
    LIMIT,
    TURNS,
    commit_number,
    is_taken,
    longest_first,
    read_durations,
    slow_ones,
    take,
    turns_of,
    with_unmeasured,
    without_turn,
)

TOP = Path(__file__).parents[2]
SLOW = {f"tests/a/test_{letter}.py::test_{i}": 1.0 + i for letter in "abc" for i in range(200)}
TURN = turns_of(SLOW)


def items(*names: str) -> list[Any]:
    return [SimpleNamespace(nodeid=name) for name in names]


def names(found: list[Any]) -> list[str]:
    return [item.nodeid for item in found]


@pytest.mark.parametrize("number", [0, 7, 1234])
def test_commits_in_a_row_run_every_slow_test_once(number: int) -> None:
    taken = [{name for name in SLOW if is_taken(name, "turn", number + i, TURN)} for i in range(TURNS)]
    assert set.union(*taken) == set(SLOW)
    assert sum(map(len, taken)) == len(SLOW)


@pytest.mark.parametrize("durations", [SLOW, read_durations()], ids=["made up", "recorded"])
def test_every_turn_takes_about_as_long(durations: dict[str, float]) -> None:
    turns = turns_of(durations)
    seconds = [sum(took for name, took in durations.items() if turns[name] == turn) for turn in range(TURNS)]
    assert max(seconds) <= 1.02 * sum(seconds) / TURNS
    assert turns == turns_of(dict(reversed(durations.items()))), "the order of the record does not matter"


def test_quick_and_new_tests_always_run() -> None:
    assert all(is_taken("tests/a/test_a.py::test_new", slow, 3, TURN) for slow in ("all", "turn", "none"))
    assert all(is_taken(name, "all", 3, TURN) for name in SLOW)
    assert not any(is_taken(name, "none", 3, TURN) for name in SLOW)


def test_what_is_left_out_is_said() -> None:
    found = items("tests/a/test_a.py::test_new", *SLOW)
    left = take(found, "none", 0, SLOW)
    assert names(found) == ["tests/a/test_a.py::test_new"]
    assert names(left) == list(SLOW)


def test_files_that_take_longest_come_first_and_tests_of_a_file_stay_in_order() -> None:
    found = items("b.py::one", "a.py::one", "a.py::two", "c.py::one", "a.py::three")
    longest_first(found, {"c.py::one": 9.0, "a.py::two": 3.0, "a.py::three": 3.0})
    assert names(found) == ["c.py::one", "a.py::one", "a.py::two", "a.py::three", "b.py::one"]


def test_phases_of_a_test_count_together() -> None:
    half = LIMIT / 2
    assert slow_ones([("b", half), ("a", 2 * LIMIT), ("b", half), ("c", half)]) == {"a": 2 * LIMIT, "b": LIMIT}


def test_a_part_of_the_tests_adds_to_the_record_and_takes_nothing_away() -> None:
    known = {"c": 3.0, "a": 2.0}
    assert with_unmeasured(known, [("b", LIMIT), ("a", 9.0), ("d", LIMIT / 2)]) == {"a": 2.0, "b": LIMIT, "c": 3.0}


def test_slow_tests_that_always_run_are_told_the_slowest_first() -> None:
    reports = [("b", LIMIT), ("c", 9.0), ("quick", LIMIT / 2), ("known", 9.0)]
    assert list(without_turn({"known": 9.0}, reports).items()) == [("c", 9.0), ("b", LIMIT)]


def test_the_number_of_a_commit_rises_with_each(tmp_path: Path) -> None:
    assert commit_number(tmp_path) == 0
    for number in (1, 2):
        me = ("-c", "user.name=a", "-c", "user.email=a@b")
        for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "a"]):
            subprocess.run(["git", *me, *command], cwd=tmp_path, check=True)
        assert commit_number(tmp_path) == number


def test_slow_tests_that_are_recorded_stand_in_files_that_exist() -> None:
    assert {file for name in read_durations() if not (TOP / (file := name.partition("::")[0])).is_file()} == set()
