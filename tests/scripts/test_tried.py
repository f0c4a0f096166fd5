"""What the records of single pages show of methods: counted by intervals, or by the seeds together."""

from __future__ import annotations

import json

import pytest

import shown
import tried


@pytest.mark.parametrize(
    ("before", "after", "sign", "gained"),
    [
        ([0.0, 0.1, 0.2], [1.0, 1.1, 1.3], 1, 3),
        ([0.0, 0.1, 0.2], [1.0, 1.1, 1.3], -1, 0),
        ([0.9, 0.8], [0.1, 0.05], -1, 2),
        ([0.0, 0.0, 0.0], [1.0, 0.0, 0.0], 1, 0),
    ],
)
def test_seeds_are_judged_together(before, after, sign, gained):
    found = tried.together("m", "here", before, after, sign)
    assert (found.gained, found.runs) == (gained, len(after))
    assert found.found.endswith(", not shown") == (gained == 0)


def test_a_mean_of_both_ends_is_told():
    assert tried.together("m", "here", [0.0, 0.2], [1.0, 1.2]).found == "2 seeds together 0.1 → 1.1"


def test_runs_of_pairs_are_counted_by_their_own_intervals(monkeypatch):
    row = {"arm": "nca", "study": "losses", "measure": "eval/reward", "before": 0.5, "final": [0.7, 0.5]}
    rows = [
        row | {"gain_low": [0.1, -0.1]},
        row | {"arm": "exo_rw, beta_r 0.1", "gain_low": [0.1, 0.2]},
        row | {"arm": "plain sum", "gain_low": [0.1, 0.2]},
        row | {"arm": "bradley_terry", "study": "circle", "gain_low": [-0.1, -0.1]},
    ]
    monkeypatch.setattr(tried, "read", lambda name: rows)
    one, other = tried.preferences()
    assert (one.method, one.gained, one.runs) == ("nca", 1, 2)
    assert one.words() == "preferences, losses (1 of 2 seeds, reward 0.500 → 0.600)"
    assert (other.method, other.gained) == ("exo_rw", 2)
    assert "exo_rw, beta_r 0.1" in other.place


def test_every_record_is_read():
    found = list(tried.further())
    assert {"nca", "kto", "nash_md", "mra", "ami", "tb", "gmah", "poppy", "rlap", "hnpg"} <= {e.method for e in found}
    assert all(0 <= each.gained <= each.runs for each in found)


def test_every_foil_stands_in_a_record():
    stored = {(row["study"], row["arm"]) for row in tried.read("preferences.json")}
    stored |= {("games", label) for label in tried.read("games.json")["methods"]}
    stored |= {(row["arena"], row["method"]) for row in tried.read("control.json")}
    assert stored >= tried.FOILS


def test_every_row_of_control_has_what_its_seeds_began_at():
    for row in json.loads((tried.DOCS / "control.json").read_text(encoding="utf-8")):
        assert len(row["began"]) == len(row["paid"]), row


@pytest.mark.parametrize(("method", "page"), shown.ON_PAGES.items())
def test_a_page_that_tells_of_runs_names_the_method_and_no_record_counts_it(method, page):
    assert f"{method}" in (tried.DOCS.parent / page).read_text(encoding="utf-8")
    assert shown.of_methods()[method]["verdict"] == "no record"
