"""Entries of the catalogue whose parts remember something, each killed inside of a run that has gradients.

`python scripts/kills.py --catalogue` takes every entry; docs/kills_catalogue.json records what it found.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kills_catalogue
from grouprl import methods

RECORD = Path(__file__).resolve().parents[2] / "docs" / "kills_catalogue.json"
BY_HAND = ("n_pg_igt", "harpg", "hnpg")
"""Entries that step without the run's optimiser: weights and momentum are in the update's own memory."""
REMEMBERING = ("vapo", "dph_rl", "otc")
"""A value model learnt before; reference rows and first rates; fewest calls, in turns. Optimiser steps of their own,
refill, stores and moving references are in test_resume and test_kills."""

EXCHANGED = {"iterative_dpo": {"every": 2}, "accelerated_dpo": {"every": 2}, "inpo": {"every": 1}}
"""Entries whose reference is the policy of an earlier round, with rounds so short that it changes within a run."""


@pytest.mark.parametrize("name", REMEMBERING)
def test_what_a_part_remembers_outlives_a_kill(name: str, tmp_path: Path) -> None:
    found = kills_catalogue.tried(name, tmp_path, seed=1)
    assert found["different"] == []
    assert found["kills"]
    assert found["steps_with_gradient"] >= 2
    assert found["optimizer_tensors"] > 0


@pytest.mark.parametrize("name", EXCHANGED)
def test_an_exchanged_reference_outlives_a_kill(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At their own settings a round is longer than the catalogue's runs, so that the first reference stays."""
    monkeypatch.setitem(kills_catalogue.SPECIAL, name, EXCHANGED[name])
    found = kills_catalogue.tried(name, tmp_path, seed=1, count=3)
    assert found["different"] == []
    assert len(found["kills"]) == 3
    assert found["steps_with_gradient"] == found["steps"]


def test_the_record_holds_every_entry_and_no_run_that_ended_otherwise_or_shows_nothing() -> None:
    entries = json.loads(RECORD.read_text())["entries"]
    assert set(entries) == set(methods())
    for name, row in entries.items():
        assert not row["different"], name
        assert row["kills"], name
        assert row["steps_with_gradient"] > 0, name
        assert row["optimizer_tensors"] > 0 or name in BY_HAND, name
