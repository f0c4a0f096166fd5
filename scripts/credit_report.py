"""The record of finer credit: whether each method learnt, and what came of comparing it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from credit_arenas import ARENAS, CONTESTS
from effects_report import VERDICTS, setup_words, table
from grouprl.storage.run_folder import write_text

MAIN = "eval/pass@1"
Rows = Sequence[Mapping[str, Any]]


def write(rows: Rows, gains: Rows, turns: Mapping[str, float], docs: Path) -> None:
    """Write credit.md and credit.json."""
    docs.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in (*gains, *rows))
    write_text(docs / "credit.json", f"[\n{lines}\n]\n")
    write_text(docs / "credit.md", page(rows, gains, turns))


def page(rows: Rows, gains: Rows, turns: Mapping[str, float]) -> str:
    """Return the text of docs/credit.md; `turns` are those of GRPO's last episodes in each arena."""
    counts = sorted({len(row["ours"]) for row in rows if "ours" in row})
    seeds = " to ".join(dict.fromkeys(map(str, counts[:1] + counts[-1:])))
    verdicts = "\n".join(f"- **{name}**: {words}" for name, words in VERDICTS.items())
    sections = "\n\n".join(section(name, rows, gains, turns) for name in ARENAS)
    return PAGE.format(seeds=seeds, summary=summary(rows, gains), verdicts=verdicts, notes=notes(), sections=sections)


def section(arena: str, rows: Rows, gains: Rows, turns: Mapping[str, float]) -> str:
    """Return what happened in an arena."""
    words = f"{ARENAS[arena].words[0].upper()}{ARENAS[arena].words[1:]}."
    taken = f" GRPO's last episodes take {turns[arena]:.1f} turns." if turns[arena] > 1 else ""
    learning = gained([row for row in gains if row["arena"] == arena])
    return f"## {arena}\n\n{words}{taken}\n\n{learning}\n\n{table([r for r in rows if r['arena'] == arena])}"


def gained(rows: Rows) -> str:
    """Return a table of what methods learnt."""
    head = "| method | seeds | before | after | gained | learns |\n| --- | --- | --- | --- | --- | --- |"
    return "\n".join([head, *(f"| {' | '.join(_gain(row))} |" for row in sorted(rows, key=lambda row: row["method"]))])


def _gain(row: Mapping[str, Any]) -> list[str]:
    if row["verdict"] == "failed":
        return [setup_words(row["setup"]), "", "", "", "", f"failed: {row['why'].splitlines()[0]}"]
    before, after = (f"{statistics.fmean(row[side]):.3f}" for side in ("theirs", "ours"))
    difference = f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
    return [setup_words(row["setup"]), str(len(row["ours"])), before, after, difference, row["verdict"]]


def summary(rows: Rows, gains: Rows) -> str:
    """Say in words which methods learnt, which beat GRPO, and which were worse, by held-out prompts."""
    unlearnt = _named(row for row in gains if row["verdict"] != "shown")
    main = [row for row in rows if row["measure"] == MAIN and row["rival"] == "grpo"]
    better, worse, broken = (
        _named(row for row in main if row["verdict"] == verdict) for verdict in ("shown", "opposite", "failed")
    )
    rest = sum(row["verdict"] in ("leaning", "not shown") for row in main)
    return (
        f"Of {len(gains)} methods in arenas all are shown to learn but {unlearnt}. Of {len(main)} comparisons with "
        f"GRPO: {better} learnt more than GRPO; {worse} learnt less; {broken} could not run; {rest} differ by less "
        "than seeds do."
    )


def _named(rows: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{setup_words(row['setup'])} ({row['arena']})" for row in rows) or "none"


def notes() -> str:
    """Return what is said of single contests."""
    return "\n".join(f"- `{each.name}` ({each.arena}): {each.note}" for each in CONTESTS if each.note)


PAGE = """# Does finer credit help on tasks of many turns?

Recorded by `scripts/credit.py`: {seeds} seeds each, all runs of an arena from one warmed-up tiny model. A method and
its rival differ in nothing but the method, unless a note says so: the same prompts, as many episodes, the same
optimiser. Intervals are 95 % of the mean paired difference over seeds (Student). Methods with a critic also meet PPO,
which has one too.

{summary}

- `eval/pass@1`: held-out prompts after training
- `whole/pass@1`: episodes of all steps, how fast it was learnt
- `train/turns_mean`: turns of the episodes of the last ten steps

{verdicts}

The first table of an arena says whether each method learns: held-out prompts after training against those before,
with the same verdicts. The second compares methods with rivals.

Of thirty intervals of 95 % one or two lie beside the truth by chance.
A toy of 70,000 parameters can show whether an idea acts; that it pays at scale it cannot show.

Notes:

{notes}

{sections}
"""
