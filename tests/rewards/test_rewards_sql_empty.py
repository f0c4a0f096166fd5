"""A right query that finds nothing: only a right query is right, not any that finds nothing."""

# ruff: noqa: E501  (a case is a line)
from __future__ import annotations

import pytest

from grouprl.rewards.sql import changed, is_right, run_query, sql_components

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


def test_where_something_is_found_the_rows_decide():
    assert is_right("select 7", "select max(fat) from pet", TABLES)


def test_other_values_are_the_same_ones_every_time():
    assert changed(TABLES, "age>8", 3) == changed(TABLES, "age>8", 3) != changed(TABLES, "age>8", 4)
