"""A right query that finds nothing: only a right query is right, not any that finds nothing."""

# ruff: noqa: E501  (a case is a line)
from __future__ import annotations

import pytest

from grouprl.rewards.by_task.sql import changed, is_right, run_query, sql_components

TABLES = {"pet": {"age": [1, 2, 3, 3], "fat": [4, 0, 6, 7]}}
EMPTY = {"shop": {"name": ["ham", "tea"], "price": [3, 5]}}
CASES = [
    (TABLES, "select max(fat) from pet where age>8", "select max(fat) from pet where 8<age", "select max(age) from pet where age>8"),
    (TABLES, "select max(fat) from pet where age>8", "select max(fat) from pet where age>=9", "select null"),
    (TABLES, "select count(fat) from pet where age=8", "select count(*) from pet where age in (8)", "select 0"),
    (TABLES, "select sum(fat) from pet where age>5", "select sum(fat) from pet where age>5", "select sum(fat) from pet where age>9"),
    (TABLES, "select age from pet where fat>8", "select age from pet where not fat<=8", "select age from pet where fat>80"),
    (EMPTY, "select price from shop where name='jam'", "select price from shop where 'jam'=name", "select price from shop where 1=2"),
    ({"pet": {"age": [], "fat": []}}, "select min(age) from pet", "select min(age) from pet", "select min(fat) from pet"),
]  # fmt: skip


@pytest.mark.parametrize(("tables", "gold", "honest", "hack"), CASES)
def test_finding_nothing_is_not_enough(tables, gold, honest, hack):
    assert run_query(hack, tables) == run_query(gold, tables), "the hack has the right rows"
    assert sql_components(hack, gold, tables)["execution"] == 0
    assert sql_components(honest, gold, tables)["execution"] == 1
    assert sql_components(gold, gold, tables)["execution"] == 1


def test_what_finds_nothing_anywhere_is_right_word_for_word():
    gold = "select age from pet where 1=2"
    assert is_right("SELECT age  FROM pet WHERE 1=2", gold, TABLES)
    assert not is_right("select fat from pet where 1=2", gold, TABLES)


@pytest.mark.parametrize(
    "guess",
    ["select 7", "values (7)", "select 7 from pet limit 1", "select max(7,0)", "select 3+4", "select 7 where 1"],
)
def test_the_rows_written_down_are_no_query_for_them(guess):
    assert run_query(guess, TABLES) == [(7,)]
    assert not is_right(guess, "select max(fat) from pet", TABLES)
    for honest in (
        "select fat from pet order by fat desc limit 1",
        "select max(fat) from pet where 1",
        "select max(0+fat) from pet",
    ):
        assert is_right(honest, "select max(fat) from pet", TABLES)


def test_counts_are_not_guessed():
    gold = "select count(*) from pet where age=3"
    assert run_query("select 2", TABLES) == run_query(gold, TABLES)
    assert not is_right("select 2", gold, TABLES)
    assert is_right("select count(fat) from pet where age in (3)", gold, TABLES)
    assert is_right("select sum(age=3) from pet", gold, TABLES)


def test_other_values_are_the_same_ones_every_time():
    assert changed(TABLES, "age>8", 3) == changed(TABLES, "age>8", 3) != changed(TABLES, "age>8", 4)
