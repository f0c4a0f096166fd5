"""Rows that scripts measured: a record of them, and their tables in a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def keep(record: Path, row: dict[str, Any], key: tuple[str, ...]) -> None:
    """Put a row into a record, in place of the one with the same `key`, and print it."""
    rows = json.loads(record.read_text(encoding="utf-8")) if record.exists() else []
    rows = [each for each in rows if any(each[name] != row[name] for name in key)]
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in [*rows, row])
    record.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(json.dumps(row), flush=True)


def fill(page: Path, tables: Mapping[str, str]) -> None:
    """Write tables into a page, each between the two comments with its name."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        head, rest = text.split(f"<!-- {name} -->")
        end = f"<!-- end of {name} -->"
        text = f"{head}<!-- {name} -->\n{lines}\n{end}{rest.split(end)[1]}"
    page.write_text(text, encoding="utf-8")
