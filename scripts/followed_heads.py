"""Whose letter the heads of `mah_dpo` write: docs/preference_heads.json, and two tables of docs/preferences.md.

    python scripts/followed_heads.py run     make the runs that are missing, and read their models
    python scripts/followed_heads.py page    write the tables

The study `objectives` (scripts/preferences.py), four times as long: DPO of one head, `mah_dpo`, and `mah_dpo` with a
model each, at the rate that all had there. Then each head or model answers the same held-out prompts; counted are the
letters that please its own annotator, and those that please the other. One model for both annotators stands beside,
once for each of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import preferences
from grouprl.experiments.trial_main import RUN
from grouprl.policy import load_policy
from grouprl.protocols import Request
from grouprl.rollout.local.decode_loop import decode
from grouprl.storage.run_folder import write_json
from grouprl.tasks.builtin.single_turn.preferences import Preferences, share_of
from learn import merged
from page_record import fill
from pooled_runs import PooledStore
from preference_studies import HEADS, Study, told

NAME, RATE, PROMPTS, SAMPLES = "objectives_long", 1e-3, 256, 4
STUDY = Study(merged(told(2), {"steps": 480}), HEADS, (RATE,), seeds=3)
RECORD = preferences.DOCS / "preference_heads.json"
app = typer.Typer()


def followed(folder: Path, wanted: Sequence[str]) -> list[float]:
    """Return the mean share of the first and of the second wanted letter in a model's words."""
    policy = load_policy(str(folder))
    asked = [(letters, seed) for letters in wanted for seed in range(SAMPLES)]
    prompts = [tuple(policy.encode_prompt(f"{letters}>")) for letters, _ in asked]
    requests = [
        Request(prompt=prompt, budget=7, seed=1000 * n + seed, name=n)
        for n, (prompt, (_, seed)) in enumerate(zip(prompts, asked, strict=True))
    ]
    words = policy.decode_all(decode(policy, requests).ids)
    shares = [[share_of(w, letters[k]) for k in range(2)] for w, (letters, _) in zip(words, asked, strict=True)]
    return [round(float(x), preferences.DIGITS) for x in np.mean(shares, 0)]


def heads_in(folder: Path) -> list[Path]:
    """Return the folder of each annotator's model: those of the heads, or twice that of the one model."""
    heads = sorted(folder.glob("annotator_*"))
    return heads or [folder, folder]


def record_of(bench: preferences.Bench, label: str, wanted: Sequence[str]) -> dict[str, Any]:
    """Return an arm's true rewards at the end, and whose letters its heads write, seed by seed."""
    trials = bench.trials(label, preferences.rate_of(RATE), range(STUDY.seeds))
    finals = [round(float(each.final(STUDY.measure) or 0), preferences.DIGITS) for each in bench.outcomes(trials)]
    folders = [made.folder(bench.store.folder) / RUN / "model" for made in trials]
    letters = [[followed(head, wanted) for head in heads_in(folder)] for folder in folders]
    before = round(float(bench.outcomes([bench.start[0]])[0].final(STUDY.measure) or 0), preferences.DIGITS)
    return {"arm": label, "rate": RATE, "end": False, "final": finals, "before": before, "letters": letters}


@app.command()
def run(out: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("runs/preferences")) -> None:
    """Make what is missing of the runs, and record whose letters their heads write."""
    bench = preferences.Bench(STUDY, NAME, PooledStore(out.absolute(), 1))
    task = Preferences(annotators=2, apart=True)
    wanted = [str(task.example("eval", number).columns["wanted"]) for number in range(PROMPTS)]
    write_json(RECORD, [record_of(bench, label, wanted) for label in STUDY.arms])


@app.command()
def page() -> None:
    """Write the tables."""
    rows = read()
    fill(preferences.DOCS / "preferences.md", {NAME: preferences.table(rows), "heads": table(rows)})


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the share of each annotator's letter in the words of each head, one row for a model without heads."""
    lines = ["| who writes | letter of annotator 0 | letter of annotator 1 |", "| --- " * 3 + "|"]
    for row in rows:
        one = all(first == second for first, second in row["letters"])
        for head in range(1 if one else 2):
            shares = [preferences.words([both[head][k] for both in row["letters"]], ".3f") for k in range(2)]
            kind = "model" if "model" in row["arm"] else "head"
            name = row["arm"] if one else f"{row['arm'].partition(',')[0]}, {kind} of annotator {head}"
            lines.append(f"| {name} | {' | '.join(shares)} |")
    return "\n".join(lines)


def read() -> list[dict[str, Any]]:
    """Return the record."""
    found: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    app()
