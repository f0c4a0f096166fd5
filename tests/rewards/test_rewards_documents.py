"""FD-RL's reward: each kind of block by its own measure, tables by the exact distance of trees."""

from __future__ import annotations

import random
from functools import cache

import pytest

from grouprl.rewards.by_task.documents import Table, document, edits, likeness, table_likeness, table_of
from grouprl.tasks import Transcribe

Node = tuple[str | None, int, tuple["Node", ...]]


@cache
def forest_distance(a: tuple[Node, ...], b: tuple[Node, ...]) -> float:
    """The definition, by recursion over the last trees of two forests."""
    if not a or not b:
        return sum(1 + forest_distance(node[2], ()) for node in (*a, *b))
    (label_a, depth_a, below_a), (label_b, depth_b, below_b) = a[-1], b[-1]
    if label_a is None or label_b is None:
        exchange = float((label_a, depth_a) != (label_b, depth_b))
    else:
        exchange = 1 - likeness(label_a, label_b)
    return min(
        forest_distance(a[:-1] + below_a, b) + 1,
        forest_distance(a, b[:-1] + below_b) + 1,
        forest_distance(a[:-1], b[:-1]) + forest_distance(below_a, below_b) + exchange,
    )


def tree(table: Table) -> Node:
    return (None, 0, tuple((None, 1, tuple((cell, 2, ()) for cell in row)) for row in table))


def size(table: Table) -> int:
    return 1 + len(table) + sum(map(len, table))


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "abc", 0), ("ab", "ba", 2)],
)
def test_edits_are_counted(a: str, b: str, distance: int) -> None:
    assert edits(a, b) == edits(b, a) == distance


@pytest.mark.parametrize(
    ("said", "right", "teds"),
    [
        (["1&2", "3&4"], ["1&2", "3&4"], 1),
        (["1&3"], ["1&2"], 1 - 1 / 4),
        (["1&2", "3&4"], ["1&2"], 1 - 3 / 7),
        (["1&2&3", "4&5&6"], ["1&2&3&4&5&6"], 1 - 3 / 9),
        (["10&2"], ["11&2"], 1 - 0.5 / 4),
    ],
)
def test_tables_are_trees(said: list[str], right: list[str], teds: float) -> None:
    """Two rows made one: both rows go, a row comes, all cells stay; a row-by-row comparison would count seven."""
    assert table_likeness(table_of(said), table_of(right)) == pytest.approx(teds)


def test_the_distance_of_trees_is_that_of_its_definition() -> None:
    rng = random.Random(0)

    def some() -> Table:
        return tuple(tuple(rng.choice("12") for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(1, 3)))

    for a, b in [(some(), some()) for _ in range(60)]:
        wanted = 1 - forest_distance((tree(a),), (tree(b),)) / max(size(a), size(b))
        assert table_likeness(a, b) == pytest.approx(wanted)


def test_kinds_that_a_page_lacks_weigh_nothing_and_added_ones_cost() -> None:
    assert document("abc", "abc") == {"text": 1, "formula": 0, "table": 0, "correct": 1}
    added = document("abc\n1&2", "abc")
    assert added == {"text": 0.5, "formula": 0, "table": 0, "correct": 0}
    missed = document("abc", "abc\n1&2\n$a$")
    assert missed == {"text": pytest.approx(1 / 3), "formula": 0, "table": 0, "correct": 0}


def test_each_kind_has_its_own_measure() -> None:
    found = document("abcd\n$a+b$\n1&3", "abce\n$a-b$\n1&2")
    assert found == {
        "text": pytest.approx(0.75 / 3),
        "formula": pytest.approx(0.8 / 3),
        "table": pytest.approx(0.75 / 3),
        "correct": 0,
    }


def test_a_page_that_is_too_long_earns_nothing() -> None:
    assert sum(document("a" * 2001, "a").values()) == 0


def test_pages_are_scanned_reversibly_and_fit_the_budget() -> None:
    task = Transcribe(blocks=6, width=12, scanned=1.0)
    for number in range(200):
        example = task.example("train", number)
        assert len(str(example.columns["answer"])) + 2 <= task.max_new_tokens
        assert len(str(example.prompt)) == len(str(example.columns["answer"])) + 1
        assert set(str(example.prompt) + str(example.columns["answer"])) <= set(task.alphabet)
