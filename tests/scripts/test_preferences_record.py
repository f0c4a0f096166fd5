"""The studies of preference methods: what the pages show is what is recorded, and every arm can be run."""

from __future__ import annotations

import pytest

import followed_heads
import preferences
from grouprl.experiments.arms import Arm
from grouprl.experiments.compare import source_of
from grouprl.methods import CATALOGUE

PLACES = [(file, name) for file, names in preferences.PAGES.items() for name in names]


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_the_table_of_a_page_is_that_of_the_record(file, name):
    rows, study = preferences.rows_of(name), preferences.STUDIES[name]
    assert [row["arm"] for row in rows] == list(study.arms)
    assert {len(row["final"]) for row in rows} == {study.seeds}
    assert preferences.table(rows) in (preferences.DOCS / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", preferences.STUDIES)
def test_every_arm_of_a_study_is_a_configuration(name):
    study = preferences.STUDIES[name]
    for label, given in study.arms.items():
        config = source_of(study.settings).config(Arm(label, preferences.changes(given)).changes)
        assert config.method_name.split("@")[0] in CATALOGUE


def test_a_table_by_hand():
    """Differences 0.1 and 0.3: mean 0.2, half-width 12.706·0.1, t = 2 with one degree of freedom, p = 0.295."""
    rows = [
        {"arm": "b", "rate": 0.001, "end": False, "final": [0.2, 0.2], "before": 0.1},
        {"arm": "a", "rate": 0.003, "end": True, "final": [0.3, 0.5], "before": 0.1},
    ]
    assert preferences.table(rows).splitlines() == [
        "| method | rate | before: 0.100; after | beside b | p (Holm) |",
        "| --- | --- | --- | --- | --- |",
        "| a | 0.003* | 0.400 [-0.871, 1.671] | +0.200 [-1.071, +1.471] | 0.3 |",
        "| b | 0.001 | 0.200 [0.200, 0.200] |  |  |",
    ]


def test_the_tables_of_heads_are_those_of_the_record():
    rows, text = followed_heads.read(), (preferences.DOCS / "preferences.md").read_text(encoding="utf-8")
    assert [row["arm"] for row in rows] == list(followed_heads.STUDY.arms)
    assert {len(row[key]) for row in rows for key in ("final", "letters")} == {followed_heads.STUDY.seeds}
    assert preferences.table(rows) in text
    assert followed_heads.table(rows) in text


def test_letters_by_hand():
    """Two seeds; of each head the share of the first and of the second annotator's letter."""
    heads = {"arm": "a", "letters": [[[0.5, 0.1], [0.3, 0.3]], [[0.6, 0.1], [0.3, 0.4]]]}
    alone = {"arm": "b", "letters": [[[0.2, 0.1]] * 2, [[0.2, 0.3]] * 2]}
    assert followed_heads.table([heads, alone]).splitlines()[2:] == [
        "| a, head of annotator 0 | 0.550 [-0.085, 1.185] | 0.100 [0.100, 0.100] |",
        "| a, head of annotator 1 | 0.300 [0.300, 0.300] | 0.350 [-0.285, 0.985] |",
        "| b | 0.200 [0.200, 0.200] | 0.200 [-1.071, 1.471] |",
    ]
