"""Rewards with and without a verifier on a weak and on a strong model, recorded in docs/alignment.md."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import typer

import learn
from finished import finished
from grouprl.evaluation.gain import recorded_gain
from grouprl.storage.run_folder import write_json, write_text
from held_out import figures

DOCS = Path(__file__).parents[1] / "docs"
JSON, PAGE = DOCS / "alignment.json", DOCS / "alignment.md"
BEGIN, END = "<!-- recorded -->", "<!-- /recorded -->"
BASES = {"weak": {"steps": 200}, "strong": {"steps": 900}}
"""Warm-ups of the model."""
REWARDS: dict[str, dict[str, Any]] = {
    "verified": {"method": "grpo"},
    "certainty": {"method": "intuitor"},
    "coin": {"method": "grpo", **learn.CONTROL_SETTINGS},
}
"""What is rewarded: right answers, the policy's certainty, or a coin that falls for each completion."""
MEASURES = ("pass@1", "pass@8")


def run(base: str, reward: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train once; return the held-out pass rates before and after, and whether the finding was made."""
    settings = {
        "task": {"name": "reverse", "length": 6, "noise": 0.25 if base == "weak" else 0.05},
        "model": {"name": "tiny", "tiny": {"layers": 2}},
        "warmup": {**BASES[base], "batch": 64},
        "batch": {"prompts": 16, "group_size": 8, "minibatches": 2},
        "optim": {"lr": 3e-4, "warmup_steps": 5},
        "steps": 30,
        "seed": seed,
        "eval": {"every": 0, "final_prompts": 256, "samples": 8, "k": [1, 8]},
        "run": {"threads": 1},
        **REWARDS[reward],
    }
    begun = time.process_time()
    finished(settings, folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    first, *_, last = [line for line in lines if line["phase"] == "eval"]
    said = json.loads((folder / "health.json").read_text(encoding="utf-8"))
    return {
        "base": base,
        "reward": reward,
        "seed": seed,
        "before": figures(first, MEASURES, 3),
        "after": figures(last, MEASURES, 3),
        "warned": "weak_start" in json.dumps(said),
        "seconds": round(time.process_time() - begun),
    }


def table(records: list[dict[str, Any]]) -> str:
    """Return a row per run."""
    head = ("base", "reward", "seed", "pass@8 before", "pass@1 before", "pass@1 after", "pass@1", "`weak_start`")
    rows = [" | ".join(map(str, _cells(each))) for each in records]
    return f"| {' | '.join(head)} |\n{'| --- ' * len(head)}|\n" + "".join(f"| {row} |\n" for row in rows)


def _cells(record: dict[str, Any]) -> list[object]:
    before, after = record["before"], record["after"]
    rates = [_interval(before, "pass@8"), _interval(before, "pass@1"), _interval(after, "pass@1")]
    return [record["base"], record["reward"], record["seed"], *rates, change(record), "yes" if record["warned"] else ""]


def change(record: dict[str, Any]) -> str:
    """Say whether pass@1 surely rose or fell."""
    gain = recorded_gain(record["before"], record["after"], "pass@1")
    if gain is None or gain.low <= 0 <= gain.high:
        return "unclear"
    return "rose" if gain.low > 0 else "fell"


def _interval(found: dict[str, float], name: str) -> str:
    return f"{found[name]:.3f} [{found[f'{name}_low']:.3f}, {found[f'{name}_high']:.3f}]"


def main(seeds: int = 3) -> None:
    """Run everything, and write docs/alignment.json and the table of docs/alignment.md."""
    records = []
    for base in BASES:
        for reward in REWARDS:
            for seed in range(seeds):
                with tempfile.TemporaryDirectory() as folder:
                    records.append(run(base, reward, seed, Path(folder) / "run"))
                typer.echo(table(records[-1:]).splitlines()[-1])
    write_json(JSON, records)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    write_text(PAGE, f"{before}{BEGIN}\n{table(records)}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    typer.run(main)
