"""Short trainings in the environments of other libraries, recorded in docs/worlds.md and docs/worlds.json.

`make worlds` runs it in an environment of its own. A tiny model learns from scratch, a few minutes of one core each;
what is shown is that the reward rises, not how far it goes.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from finished import finished
from grouprl.core.errors import InputError, suggest
from grouprl.storage.run_folder import write_json, write_text

ROOT = Path(__file__).parents[1]
PAGE, RECORD = ROOT / "docs" / "worlds.md", ROOT / "docs" / "worlds.json"
BEGIN, END = "<!-- recorded -->", "<!-- /recorded -->"
ENDS = 5
"""Steps that the first and the last reward are averaged over."""
SIZE = {"tiny": {"hidden": 64, "layers": 2, "heads": 2, "intermediate": 128}}
COMMON: dict[str, Any] = {
    "model": SIZE,
    "method": {"base": "grpo", "clip_high": 0.28, "aggregate": "token_mean"},
    "eval": {"every": 0, "final_prompts": 1, "samples": 1},
    "run": {"threads": 1},
    "environment": {"workers": 0},
}
LETTERS = "abCopySayletrs.:>0123456789 "


def plans(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the runs by the name of the library; games are written and kept in `folder`."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    words = {
        "task": {"name": "verifiers:vf-letters", "tokens": 6, "characters": LETTERS},
        "warmup": {"steps": 0},
        "batch": {"prompts": 8, "group_size": 8, "minibatches": 1},
        "optim": {"lr": 5e-3, "warmup_steps": 2, "schedule": "constant"},
        "steps": 30,
    }
    rooms = {
        "task": {
            "name": "textworld:generated",
            "objects": 2,
            "quest_length": 1,
            "games": 3,
            "held_out": 1,
            "choices": "numbered",
            "turns": 2,
            "tokens": 3,
            "folder": str(folder / "games"),
        },
        "warmup": {"steps": 60, "batch": 6, "lr": 3e-3},
        "batch": {"prompts": 3, "group_size": 16, "minibatches": 1},
        "optim": {"lr": 3e-3, "warmup_steps": 2, "schedule": "constant"},
        "steps": 30,
    }
    return {"verifiers": words, "textworld": rooms}


def record(name: str, plan: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a plan, and return what came of it."""
    begun, busy = time.perf_counter(), time.process_time()
    run = finished({**COMMON, **plan}, folder / name).folder
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rewards = [line["reward_mean"] for line in lines if line["phase"] == "train"]
    return {
        "version": importlib.metadata.version(name),
        "steps": len(rewards),
        "episodes": plan["batch"]["prompts"] * plan["batch"]["group_size"],
        "first": sum(rewards[:ENDS]) / ENDS,
        "last": sum(rewards[-ENDS:]) / ENDS,
        "failed": sum(line.get("reward_errors", 0) for line in lines if line["phase"] == "train"),
        "seconds": time.perf_counter() - begun,
        "processor_seconds": time.process_time() - busy,
    }


def page(records: dict[str, dict[str, Any]]) -> str:
    """Return the table of what is recorded."""
    rows = ["| library | version | steps of episodes | reward, first 5 steps | last 5 | failed | processor s |"]
    rows.append("| --- | --- | --- | --- | --- | --- | --- |")
    for name, found in records.items():
        rows.append(
            f"| `{name}` | {found['version']} | {found['steps']} of {found['episodes']} | {found['first']:.3f} | "
            f"{found['last']:.3f} | {found['failed']:.0f} | {found['processor_seconds']:.0f} |"
        )
    return "\n".join(rows)


def main(names: Annotated[list[str] | None, typer.Argument(help="Libraries; none: all.")] = None) -> None:
    """Train a tiny model in each library's environment and record what it earned."""
    with tempfile.TemporaryDirectory() as name:
        known = plans(Path(name))
        for each in names or known:
            if each not in known:
                raise InputError(f"There is no run '{each}'", remedy=suggest(each, known))
            records = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
            records[each] = record(each, known[each], Path(name))
            print(each, records[each], flush=True)
            records = {key: records[key] for key in known if key in records}
            write_json(RECORD, records)
            text = PAGE.read_text(encoding="utf-8")
            before, _, rest = text.partition(BEGIN)
            write_text(PAGE, f"{before}{BEGIN}\n{page(records)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    typer.run(main)
