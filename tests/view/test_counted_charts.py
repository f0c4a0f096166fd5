"""Components of a reward that are counted and not paid have charts of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grouprl.view import curves
from grouprl.view.runfiles import RunData


@pytest.fixture
def run() -> RunData:
    """Two steps with a paid and a counted component, the latter a hundred times as large."""
    train: list[dict[str, Any]] = [
        {"phase": "train", "step": step, "reward/cost": -step, "reward/#gap": 100.0 * step, "mood": 0.1 * step}
        for step in (1, 2)
    ]
    held_out = [{"phase": "eval", "step": 2, "eval/reward": -1.5, "eval/reward/#gap": 150.0}]
    return RunData(Path("run"), records=[*train, *held_out])


def test_what_is_counted_does_not_flatten_what_is_paid(run: RunData) -> None:
    assert curves.component_names(run) == ["reward/cost"]


def test_each_counted_component_is_drawn_once(run: RunData) -> None:
    assert ["gap, counted, not paid" in drawn for drawn in curves.counts(run)] == [True]
    titles = "".join(curves.further(run))
    assert "mood" in titles
    assert "gap" not in titles
