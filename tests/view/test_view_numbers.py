"""Numbers as the pages and the application show them, small and large ones."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grouprl.view.app.answers import answered
from grouprl.view.app.shown_runs import RunLibrary
from grouprl.view.charts import Series, chart, number
from viewed_runs import run_folder, stored_row


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9999.4, "9999"),
        (9999.6, "10k"),
        (12_345, "12.3k"),
        (999_400, "999k"),
        (999_600, "1M"),
        (-999_600, "-1M"),
        (2.5e9, "2.5B"),
        (3e12, "3e+12"),
        (0.00012345, "0.00012"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_a_curve_tells_the_very_step() -> None:
    figure = chart("loss", "", [Series("run", [123_456.0, 123_457.0], [0.123456789, 1.0])])
    found = re.search('data-curves="([^"]*)"', figure)
    assert found is not None
    assert json.loads(html.unescape(found[1]))["series"] == [
        {"n": "run", "x": [123_456.0, 123_457.0], "y": [0.12346, 1.0]}
    ]


def test_weights_of_tokens_of_a_large_step_are_told(tmp_path: Path) -> None:
    """Each token of a step of four million has a weight of 2.5e-7."""
    folder = run_folder(tmp_path / "large", steps=1)
    row = stored_row(1, 0, 0, "ab", 1.0) | {"weight": [2.5e-7, 1 / 3, 0.0], "push": [-1.234567e-9, 4e5, None]}
    pq.write_table(pa.Table.from_pylist([row]), folder / "rollouts" / "step-000001.parquet")
    found = answered(RunLibrary([folder]), "group", {"run": ["large"], "step": ["1"], "group": ["0"]})
    places = [1 + found["columns"].index(name) for name in ("weight", "push")]
    told = [[token[place] for place in places] for token in found["rows"][0]["tokens"]]
    assert told == [[2.5e-07, -1.23457e-09], [0.333333, 400000.0], [0.0, None]]
