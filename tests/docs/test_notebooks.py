"""The notebooks of the docs have been executed from the first cell to the last, and a cell that fails is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import notebooks

FOUND = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_are_three() -> None:
    assert len(FOUND) == 3


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_every_cell_was_executed_in_order_and_none_failed(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"] == []


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_something_shows_itself_in_each(path: Path) -> None:
    shown = [out["data"] for cell in code_cells(path) for out in cell["outputs"] if "data" in out]
    assert any("text/html" in data for data in shown)
    assert notebooks.page(path.stem, json.loads(path.read_text())).count("```python") == len(code_cells(path))


def test_no_notebook_tells_of_the_machine_that_executed_it() -> None:
    told = [each for path in FOUND for each in ("/tmp/", "/root/", "/home/") if each in path.read_text("utf-8")]
    assert told == []


def test_outputs_stand_below_their_cells() -> None:
    frame = "<iframe srcdoc='a\n\nb'></iframe>"
    outs = [
        {"output_type": "stream", "name": "stdout", "text": ["one\n"]},
        {"output_type": "stream", "name": "stderr", "text": ["noise"]},
        {"output_type": "execute_result", "data": {"text/plain": "x", "text/html": frame}},
        {"output_type": "execute_result", "data": {"text/plain": "2"}},
    ]
    cells = [{"cell_type": "markdown", "source": "# T"}, {"cell_type": "code", "source": "f()", "outputs": outs}]
    made = notebooks.page("n", {"cells": cells})
    assert made.startswith("# T\n\n```python\nf()\n```\n\n```text\none\n```\n\n<div><iframe srcdoc='a&#10;&#10;b'>")
    assert "noise" not in made
    assert "```text\n2\n```" in made


def test_a_cell_that_fails_is_told(tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient")
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": "1 / 0", "execution_count": None, "outputs": []}
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    with pytest.raises(client.exceptions.CellExecutionError, match="ZeroDivisionError"):
        notebooks.execute(path)
