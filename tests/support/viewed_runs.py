"""Run folders as a viewer reads them, written by hand: two runs that differ in one setting, with two stored steps."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

EVIL = "<img src=x onerror=document.title='owned'></script>"


def stored_row(
    step: int, group: int, sample: int, text: str, reward: float | None, **more: object
) -> dict[str, object]:
    """A row of `len(text) + 1` tokens, one per character and the end; the last one is not trained on."""
    count = len(text) + 1
    row: dict[str, object] = {
        "step": step,
        "group": group,
        "prompt_id": f"q/{group}",
        "prompt": f"{group}+{group}=",
        "source": "sampled",
        "completion": text,
        "completion_ids": list(range(count)),
        "mask": [True] * (count - 1) + [False],
        "behavior_logp": [-0.5] * (count - 1) + [-9.0],
        "entropy": [0.25] * (count - 1) + [7.0],
        "reward": reward,
        "components": [],
        "correct": None if reward is None else reward >= 1,
        "truncated": False,
        "status": "ok" if reward is not None else "error",
        "used": reward is not None,
        "advantage": None if reward is None else [2 * reward - 1.0] * count,
        "sample": sample,
        "row": 0,
        "agent": None,
        "ended": None,
        "turns": None,
    }
    return row | more


def rows_of(step: int) -> list[dict[str, object]]:
    """Two groups: one with a right row, a wrong one and one without a reward; one of two episodes."""
    turns = [{"number": 0, "state": "s0", "action": "go", "reward": 0.5, "valid": True, "seen": "a wall"}]
    return [
        stored_row(step, 1, 0, "2", 1.0),
        stored_row(step, 1, 1, "three", 0.0, truncated=True),
        stored_row(step, 1, 2, EVIL, None),
        stored_row(step, 2, 0, "go", 0.75, agent="boss", ended="goal", turns=turns, correct=False),
        stored_row(step, 2, 1, "No", 0.25, agent="boss", ended="turn limit", turns=turns, correct=False),
    ]


def run_folder(folder: Path, *, rate: float = 0.001, steps: int = 2, finished: bool = True) -> Path:
    """Write a run; one that is not finished has neither a summary nor a health report."""
    (folder / "rollouts").mkdir(parents=True)
    config = f"task:\n  name: addition\nmethod:\n  name: grpo\nsteps: {steps}\noptim:\n  lr: {rate}\n"
    (folder / "config.yaml").write_text(config)
    records = [
        {"phase": "train", "step": n, "reward_mean": n / 10, "entropy": 1.0, "own": 3.0} for n in range(1, steps + 1)
    ]
    records += [{"phase": "eval", "step": 0, "eval/greedy": 0.5, "eval/greedy_low": 0.4, "eval/greedy_high": 0.6}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    for step in range(1, steps + 1):
        pq.write_table(pa.Table.from_pylist(rows_of(step)), folder / "rollouts" / f"step-{step:06d}.parquet")
    if finished:
        found = [
            {
                "code": "truncation",
                "severity": "warning",
                "text": "Many rows are cut off.",
                "remedy": "More tokens.",
                "first_step": 1,
                "last_step": 2,
                "persists": True,
                "key": "entropy",
            }
        ]
        (folder / "health.json").write_text(json.dumps(found))
        (folder / "summary.json").write_text(json.dumps({"method": "grpo", "task": "addition", "steps": steps}))
    return folder
