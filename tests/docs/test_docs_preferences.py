"""The page on preferences says what is so: its rows load, its tables are the code's, its defaults are the task's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grouprl.tasks import load_task
from grouprl.tasks.adapters.preferences.pairs import Pairs
from grouprl.tasks.adapters.preferences.preference_rows import Names, format_of, formats
from grouprl.tasks.builtin.single_turn.preferences import Preferences

PAGE = (Path(__file__).parents[2] / "docs" / "preferences.md").read_text(encoding="utf-8")
LINES = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)[0].splitlines()


def table(header: str) -> list[list[str]]:
    """The cells of the lines of a table, which begins with this cell."""
    lines = PAGE.split(f"| {header} |")[1].splitlines()[2:]
    rows = lines[: next(n for n, line in enumerate(lines) if not line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in rows]


@pytest.mark.parametrize("line", LINES)
def test_a_row_of_the_page_loads(line: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(line)
    task = load_task({"name": f"pairs:{tmp_path / 'rows.jsonl'}", "eval_fraction": 0})
    best = task.stored_rows(task.example("train", 0))[0]  # type: ignore[attr-defined]
    assert best.completion.strip().lower() == "blue."
    assert best.reward > 0


def test_the_table_of_formats_is_the_order_in_which_they_are_looked_for() -> None:
    shown = [(tuple(re.findall(r"`(\w+)`", columns)), name) for columns, name, _ in table("columns")]
    *by_columns, (_, by_option) = shown
    assert by_columns == [(each.columns, each.name) for each in formats(Names())]
    assert format_of({}, Names(ratings=("help",)), "").name == by_option
    assert {format_of(json.loads(line), Names(), "").name for line in LINES} == {name for _, name in by_columns}


def test_defaults_and_options_of_the_page_are_those_of_the_tasks() -> None:
    for option, default, _ in table("option"):
        assert str(Pairs.model_fields[option.strip("`")].default) == default.strip("`")
    known = {name for name in Preferences.model_fields if name not in ("seed", "level", "longest")}
    last = PAGE.split("| option | what it does |")[1]
    assert set(re.findall(r"^\| `(\w+)", last, flags=re.MULTILINE)) == known
