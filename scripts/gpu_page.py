"""The record of `make gpu`: docs/gpu.json, and the tables of docs/gpu.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_checks import Finding
from page_record import fill

Row = dict[str, Any]
Record = dict[str, list[Row]]
"""Rows by check; each says on which machine it was found."""


def read(docs: Path) -> Record:
    """Return what is recorded."""
    path = docs / "gpu.json"
    found: Record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def joined(record: Record, check: str, result: Finding | Row, machine: Row) -> Record:
    """Return the record with a row in the place of the same one of earlier."""
    row = (result.row() if isinstance(result, Finding) else result) | {"machine": machine}
    kept = [old for old in record.get(check, []) if _name(old) != _name(row)]
    return record | {check: [*kept, row]}


def _name(row: Row) -> tuple[object, ...]:
    return tuple(row.get(key) for key in ("what", "size", "way"))


def write(docs: Path, record: Record) -> None:
    """Write the tables of the page."""
    findings = [row for check, rows in record.items() for row in rows if "what" in row and check != "catalogue"]
    fill(
        docs / "gpu.md",
        {
            "checks": table(("check", "what", "apart", "may be", ""), _together(findings)),
            "catalogue": catalogue(record.get("catalogue", [])),
            "steps": table(STEP, [cells for row in record.get("steps", []) for cells in _step(row)]),
            "decoding": table(DECODED, map(_decoded, record.get("decoding", []))),
            "machines": "\n".join(f"- {machine}" for machine in machines(record)),
        },
    )


def machines(record: Record) -> list[str]:
    """Return the machines on which something was found, with versions, and what was found there."""
    where: dict[str, list[str]] = {}
    for check, rows in record.items():
        for row in rows:
            where.setdefault(", ".join(f"{name} {value}" for name, value in row["machine"].items()), []).append(check)
    return [f"{machine}: {', '.join(dict.fromkeys(checks))}" for machine, checks in where.items()]


def _together(rows: Sequence[Row]) -> Iterator[list[object]]:
    """Yield a line for each thing that was compared, with all that was compared of it."""
    things: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        things.setdefault((row["check"], row["what"].rpartition(": ")[0] or row["what"]), []).append(row)
    for (check, what), found in things.items():
        apart = ", ".join(_number(row) for row in found if row["apart"] is not None)
        wrong = [row["why"] or "**differs**" for row in found if not row["passed"]]
        yield [check, what, apart, f"{found[0]['limit']:g}", wrong[0] if wrong else "agrees"]


def _number(row: Row) -> str:
    name = row["what"].rpartition(": ")[2] if ": " in row["what"] else ""
    return f"{name} {row['apart']:.2g}".strip()


def catalogue(rows: Sequence[Row]) -> str:
    """Return in words how many entries ran, how many resumed to the same bits, and which did not."""
    if not rows:
        return "Not run yet."
    equal = sum(row["apart"] == 0 for row in rows)
    near = [row for row in rows if row["passed"] and row["apart"] > 0]
    wrong = [row for row in rows if not row["passed"]]
    words = [f"{len(rows)} entries were run; {equal} took their last two steps again to the same bits."]
    words += [f"Near, but not the same: {', '.join(_apart(row) for row in near)}."] if near else []
    words += [f"**Not run or different**: {'; '.join(_apart(row) for row in wrong)}."] if wrong else []
    return " ".join(words)


def _apart(row: Row) -> str:
    return f"`{row['what']}` ({row['why'] or format(row['apart'], '.1g')})"


STEP = ("weights", "way", "part", "seconds", "planned", "tokens/s", "peak GiB")
DECODED = ("weights", "rows", "tokens", "seconds", "planned", "ms a token", "tokens/s")


def _step(row: Row) -> Iterator[list[object]]:
    if "failed" in row:
        yield [row["size"], row["way"], row["failed"], "", "", "", ""]
        return
    for part in ("scoring", "training"):
        planned = row.get("planned", {}).get(part)
        rate = f"{row['tokens'] / row[part]:,.0f}"
        peak = f"{row['peak_gib']:.1f}" if part == "training" else ""
        yield [row["size"], row["way"], part, f"{row[part]:.3f}", _seconds(planned), rate, peak]


def _decoded(row: Row) -> list[object]:
    each = f"{1000 * row['per_token']:.1f}"
    rate = f"{row['tokens'] / row['seconds']:,.0f}"
    return [row["size"], row["rows"], row["tokens"], f"{row['seconds']:.2f}", _seconds(row.get("planned")), each, rate]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def table(head: Sequence[str], rows: Any) -> str:
    """Return a table of Markdown; in words where it has no rows."""
    lines = [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "| --- " * len(head) + "|", *lines]) if lines else "Not run yet."
