"""The stored steps on the page: one group of each, with its best and worst completion, and the command for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from shlex import quote

from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.view.charts import number
from grouprl.view.tokens import verdict

TEXT = 400
"""Largest number of characters of a prompt or completion."""
COLUMNS = ("group", "prompt", "completion", "reward", "correct")


def stored_steps(folder: Path, *, marks: bool = True) -> str:
    """Return a collapsible block for each stored step of a run folder, in order; "" if at most one step is stored.

    With `marks`, completions are marked as right or wrong.
    """
    files = sorted(folder.glob("rollouts/step-*.parquet"))
    if len(files) < 2:
        return ""
    folds = "".join(_fold(folder, path, marks) for path in files)
    return f"<h3>All {len(files)} stored steps</h3>{folds}"


def _fold(folder: Path, path: Path, marks: bool) -> str:
    step = int(path.stem.partition("-")[2])
    command = f"<code>grouprl show {escape(quote(str(folder)))} --step {step}</code>"
    try:
        groups = _groups(path)
    except (OSError, ValueError) as error:
        return f"<details><summary>step {step}: cannot be read</summary><p>{escape(str(error)[:200])}</p></details>"
    rewards = [row["reward"] for group in groups for row in group if row.get("reward") is not None]
    mixed = [group for group in groups if len({row.get("reward") for row in group}) > 1]
    facts = [f"reward {number(sum(rewards) / len(rewards))}"] if rewards else []
    facts += [f"{len(mixed)} of {len(groups)} groups with different rewards"]
    shown = (mixed or groups)[:1]
    body = "".join(_pair(group, marks) for group in shown)
    more = f'<p class="muted">{command} shows it in full, <code>--list</code> lists the others.</p>'
    return f"<details><summary>step {step} · {' · '.join(facts)}</summary>{body}{more}</details>"


def _pair(group: Sequence[JsonMapping], marks: bool) -> str:
    ranked = sorted(group, key=lambda row: -1e300 if row.get("reward") is None else float(row["reward"]))
    ends = ranked[-1:] + ranked[:1] * (len(ranked) > 1)
    prompt = f'<pre class="prompt">{_text(group[0].get("prompt"))}</pre>'
    return prompt + "".join(_completion(row, marks) for row in ends)


def _completion(row: JsonMapping, marks: bool) -> str:
    reward = "no reward" if row.get("reward") is None else f"reward {number(float(row['reward']))}"
    head = f'{verdict(row.get("correct") if marks else None)}<span class="muted">{reward}</span>'
    return f'<div class="completion"><p>{head}</p><pre>{_text(row.get("completion"))}</pre></div>'


def _groups(path: Path) -> list[list[JsonObject]]:
    """Read the columns that are shown, by group; raise ValueError if the file is damaged."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        known = [name for name in COLUMNS if name in file.schema_arrow.names]
        rows = file.read(columns=known).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"damaged Parquet file: {error}") from error
    groups: dict[object, list[JsonObject]] = {}
    for row in rows:
        groups.setdefault(row.get("group"), []).append(row)
    return list(groups.values())


def _text(value: object) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= TEXT else f"{text[: TEXT * 2 // 3]} … {text[-TEXT // 3 :]}")
