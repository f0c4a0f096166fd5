"""The record of finer credit: whether each method learnt, and what came of comparing it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from credit_arenas import ARENAS, CONTESTS, Contest
from effects_report import OWN_HEAD, VERDICTS, Row, key_of, markdown, own_cells, setup_words, table
from grouprl.storage.run_folder import write_text

MAIN = "eval/pass@1"
Rows = Sequence[Row]


def read(docs: Path) -> list[Row]:
    """Return the rows of the record; none if there is no record."""
    path = docs / "credit.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def joined(rows: Rows, seen: Rows) -> list[Row]:
    """Return the rows of a record with new ones in place of their like.

    An arm that is in several contests has one row of what it learnt: one that failed replaces none that did not. What
    was seen at one rate for all stays beside what is seen at own rates.
    """
    found = {_key(row): row for row in rows}
    for row in seen:
        old = found.get(_key(row), row)
        if row["verdict"] == "failed" and old["verdict"] != "failed":
            continue
        found[_key(row)] = {**row, **_at_one_rate(old)}
    return list(found.values())


def _key(row: Row) -> str:
    return f"{key_of(row)} {row['rival']}"


def _at_one_rate(old: Row) -> Row:
    """Return the entry `one_rate` of a row: what it held already, or what was seen before rates were tuned."""
    if "one_rate" in old:
        return {"one_rate": old["one_rate"]}
    if old.get("tuned") or old["verdict"] == "failed":
        return {}
    return {"one_rate": {"difference": old["difference"], "verdict": old["verdict"]}}


def at_own_rates(rows: Rows) -> set[tuple[str, str]]:
    """Return arena and setup of the methods that have been compared at own rates."""
    return {(row["arena"], json.dumps(row["setup"])) for row in rows if row["rival"] and row.get("tuned")}


def contest_key(contest: Contest) -> tuple[str, str]:
    """Return arena and setup of a contest's method."""
    return contest.arena, json.dumps(contest.method)


def write(rows: Rows, docs: Path) -> None:
    """Write credit.md and credit.json."""
    docs.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    write_text(docs / "credit.json", f"[\n{lines}\n]\n")
    write_text(docs / "credit.md", page(rows))


def page(rows: Rows) -> str:
    """Return the text of docs/credit.md."""
    contests = [row for row in rows if row["rival"]]
    counts = sorted({len(row["ours"]) for row in contests if "ours" in row})
    seeds = " to ".join(dict.fromkeys(map(str, counts[:1] + counts[-1:])))
    verdicts = "\n".join(f"- **{name}**: {words}" for name, words in VERDICTS.items())
    sections = "\n\n".join(section(name, [row for row in rows if row["arena"] == name]) for name in ARENAS)
    numbers = {"own": len(at_own_rates(rows)), "count": len(CONTESTS)}
    said = {"summary": summary(rows), "verdicts": verdicts, "notes": notes(), "sections": sections}
    return PAGE.format(seeds=seeds, **numbers, **said)


def section(arena: str, rows: Rows) -> str:
    """Return what happened in an arena."""
    words = f"{ARENAS[arena].words[0].upper()}{ARENAS[arena].words[1:]}."
    turns = next((row["turns"] for row in rows if not row["rival"] and row["method"] == "grpo"), 1.0)
    taken = f" GRPO's last episodes take {turns:.1f} turns." if turns > 1 else ""
    contests = [row for row in rows if row["rival"]]
    own = [row for row in contests if row.get("tuned")]
    rest = [row for row in contests if not row.get("tuned")]
    first = f"Each at its own rate:\n\n{own_table(own)}" if own else ""
    second = f"One rate for all:\n\n{table(rest)}" if rest else ""
    learning = gained([row for row in rows if not row["rival"]])
    return "\n\n".join(filter(None, (f"## {arena}", words + taken, learning, first, second)))


def own_table(rows: Rows) -> str:
    """Return a Markdown table of comparisons at own rates, with what was seen at one rate for all."""
    ordered = sorted(rows, key=lambda row: row["method"])
    return markdown([*OWN_HEAD, "at one rate for all"], [[*own_cells(row), _before(row)] for row in ordered])


def _before(row: Row) -> str:
    old = row.get("one_rate")
    return f"{old['difference']:+.3f} {old['verdict']}" if old else ""


def gained(rows: Rows) -> str:
    """Return a table of what methods learnt."""
    head = ["method", "rate", "seeds", "before", "after", "gained", "learns"]
    return markdown(head, [_gain(row) for row in sorted(rows, key=lambda row: row["method"])])


def _gain(row: Row) -> list[str]:
    rate = ", ".join(f"{each['rate']}{'*' * each['end']}" for each in row.get("tuned", ()))
    if row["verdict"] == "failed":
        return [setup_words(row["setup"]), rate, "", "", "", "", f"failed: {row['why'].splitlines()[0]}"]
    before, after = (f"{statistics.fmean(row[side]):.3f}" for side in ("theirs", "ours"))
    difference = f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
    return [setup_words(row["setup"]), rate, str(len(row["ours"])), before, after, difference, row["verdict"]]


def summary(rows: Rows) -> str:
    """Say in words which methods learnt, which beat GRPO, and which were worse, by held-out prompts."""
    gains = [row for row in rows if not row["rival"]]
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


def _named(rows: Iterable[Row]) -> str:
    return ", ".join(f"{setup_words(row['setup'])} ({row['arena']})" for row in rows) or "none"


def notes() -> str:
    """Return what is said of single contests."""
    return "\n".join(f"- `{each.name}` ({each.arena}): {each.note}" for each in CONTESTS if each.note)


PAGE = """# Does finer credit help on tasks of many turns?

Recorded by `scripts/credit.py`: {seeds} seeds each, all runs of an arena from one warmed-up tiny model. A method and
its rival differ in nothing but the method and, where the table says so, the learning rate, unless a note says more: the
same prompts, as many episodes, the same optimiser. Intervals are 95 % of the mean paired difference over seeds
(Student). Methods with a critic also meet PPO, which has one too.

**Rates.** {own} of {count} contests are held with each method and each rival at its own learning rate: the best by
`eval/pass@1` of three (the arena's, a third of it and three times it), tried on one seed that is none of those
compared. A rate with a * is the end of its sweep, so that a better one may lie beyond. The others are at the arena's
rate, one for all; the tables say which.

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
