"""The application as one file: the answers of its questions, kept in the page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.storage.run_folder import write_text
from grouprl.view.app.answers import PHASES, answered
from grouprl.view.app.page import stored_page
from grouprl.view.app.row_query import choices, groups_of
from grouprl.view.app.row_tokens import group_of
from grouprl.view.app.shown_runs import RunLibrary

SINGLE = ("run", "findings", "method", "choices")
"""Questions about one run whose answers an exported page holds."""


def export_page(library: RunLibrary, path: Path, rows: int) -> int:
    """Write the page with all runs, and the newest `rows` rows of each; return how many rows are left out.

    Raises:
        InputError: `path` is a folder, or is not a page by its name.
    """
    if path.is_dir() or path.suffix not in (".html", ".htm"):
        raise InputError(f"--export {path}", "it must name the file of a page", "Such as: --export runs.html")
    data = stored_data(library, rows)
    write_text(path, stored_page(data))
    return sum(data["left_out"].values())


def stored_data(library: RunLibrary, rows: int) -> JsonObject:
    """Return the answers that the page holds: as those of the server, but rows whole and groups by step and number."""
    names = list(library.folders())
    kept = {name: _newest(library.rows(name), rows) for name in names}
    found: JsonObject = {each: {name: answered(library, each, {"run": [name]}) for name in names} for each in SINGLE}
    found["runs"] = answered(library, "runs", {})
    found["settings"] = answered(library, "settings", {})
    found["metrics"] = answered(library, "metrics", {})
    found["curves"] = {phase: _curves(library, found["metrics"]["metrics"], phase) for phase in PHASES}
    found["rows"] = {name: table.to_pylist() for name, table in kept.items()}
    found["groups"] = {name: _groups(library, name, table) for name, table in kept.items()}
    found["grouped"] = {name: _grouped(table) for name, table in kept.items()}
    found["calls"] = {name: _calls(library, name, table) for name, table in kept.items()}
    found["left_out"] = {name: len(library.rows(name)) - len(table) for name, table in kept.items()}
    return found


def _curves(library: RunLibrary, metrics: list[JsonObject], phase: str) -> JsonObject:
    names = [each["metric"] for each in metrics if each["phase"] == phase]
    asked = {"metric": names, "phase": [phase]}
    return {each["metric"]: each for each in answered(library, "curves", asked)["curves"]} if names else {}


def _grouped(table: pa.Table) -> JsonObject:
    """Return the answers of `groups` of the steps that are kept."""
    steps = choices(table)["step"]
    return {str(step): {"step": step, "steps": steps, "groups": groups_of(table, step)} for step in steps}


def _newest(table: pa.Table, rows: int) -> pa.Table:
    """Return the rows of the newest steps, whole steps only, that are at most `rows` together."""
    counts = {each["values"]: each["counts"] for each in pc.value_counts(table["step"]).to_pylist()}
    kept, left = [], rows
    for step in sorted(counts, reverse=True):
        left -= counts[step]
        if left < 0:
            break
        kept.append(step)
    return table.filter(pc.is_in(table["step"], pa.array(kept, pa.int64())))


def _groups(library: RunLibrary, name: str, table: pa.Table) -> JsonObject:
    pieces, folder = library.pieces(name), library.folder(name)
    found: JsonObject = {}
    for step in choices(table)["step"]:
        beside = table.filter(pc.equal(table["step"], step))  # a group is searched for in its step, not in all of them
        numbers = [each for each in pc.unique(beside["group"]).to_pylist() if each is not None]
        found |= {f"{step}/{each}": group_of(folder, beside, step, each, pieces) for each in numbers}
    return found


def _calls(library: RunLibrary, name: str, table: pa.Table) -> JsonObject:
    """Return the answers of `calls` of the episodes with several rows."""
    columns = [table[each].to_pylist() for each in ("step", "prompt_id", "sample")]
    keys = Counter(zip(*columns, strict=True))
    several = [key for key, count in keys.items() if count > 1 and None not in key]
    return {
        f"{step}/{sample}/{prompt}": answered(
            library, "calls", {"run": [name], "step": [str(step)], "prompt_id": [prompt], "sample": [str(sample)]}
        )
        for step, prompt, sample in several
    }
