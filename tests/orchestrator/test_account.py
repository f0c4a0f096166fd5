"""The account of a run closes: what was requested and sampled was trained on, or dropped for a stated reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toy_envs
from grouprl.orchestrator.account_words import ELSEWHERE, REASONS, in_words, totals
from grouprl.orchestrator.accounting import account
from grouprl.rollout.prompt_stream import PromptStream
from grouprl.rollout.text_sampling import TextSampling
from single_runs import launch, records

ELSEWHERE_METRICS = [f"{what}_{name}" for what in ("rows", "prompts") for name in ELSEWHERE]

REWARDS = """
import time

def sevens_fail(completion, answer, **_):
    if answer.endswith("7"):
        raise ZeroDivisionError("no sevens")
    return float(completion == answer)

def sevens_are_nan(completion, answer, **_):
    return float("nan") if answer.endswith("7") else float(completion == answer)

def sevens_hang(completion, answer, **_):
    if answer.endswith("7") and completion < "6":
        time.sleep(60)
    return float(completion == answer)

def not_for_sevens(completion, answer, **_):
    return None if answer.endswith("7") else float(completion == answer)

def short_fail(completion, answer, **_):
    if len(completion) == 1:
        raise ValueError("too short")
    return 0.0

def never(completion, **_):
    return 0.0
"""


def closed(folder: Path) -> dict[str, float]:
    """Check the account of every step of a run, and return its sums."""
    sums: dict[str, float] = {}
    for record in [*records(folder, "pretraining"), *records(folder, "train")]:
        lost = {name: n for name, n in record.items() if name.startswith(("rows_lost/", "prompts_lost/"))}
        assert all(n > 0 and name.partition("/")[2] in (*REASONS, "not_completed") for name, n in lost.items())
        rows = sum(n for name, n in lost.items() if name.startswith("rows"))
        examples = sum(n for name, n in lost.items() if name.startswith("prompts"))
        elsewhere = {name: record[name] for name in ELSEWHERE_METRICS if name in record}
        assert all(n > 0 for n in elsewhere.values())
        rows += sum(n for name, n in elsewhere.items() if name.startswith("rows"))
        examples += sum(n for name, n in elsewhere.items() if name.startswith("prompts"))
        assert record["rows_sampled"] + record["rows_stored"] == record["rows_used"] + rows
        assert record["prompts_sampled"] + record["prompts_stored"] == record["prompts_trained"] + examples
        assert (record["prompts_trained"] > 0) == (record["rows_used"] > 0)
        names = ("rows_sampled", "rows_stored", "rows_used", "prompts_sampled", "prompts_stored", "prompts_trained")
        for name, n in {**{name: record[name] for name in names}, **elsewhere, **lost}.items():
            sums[name] = sums.get(name, 0) + n
    return sums


def prompts_dealt(folder: Path) -> int:
    """How many prompts the run has dealt out since its warm-up, by its own counter."""
    state = json.loads((max((folder / "checkpoints").glob("step-*")) / "state.json").read_text())
    first = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    return int(state["source"]["sampled"]) - (30 * 32 if first["phase"] == "warmup" else 0)


@contextmanager
def counted_requests() -> Iterator[list[Any]]:
    """What is requested of the sampler of texts inside the block, in training alone."""
    seen: list[Any] = []
    generate = TextSampling.generate

    def counting(own: TextSampling, rows: Any, **options: Any) -> Any:
        seen.extend(rows if own.settings.seeds.use == "train" else ())
        return generate(own, rows, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextSampling, "generate", counting)
        yield seen


def run(folder: Path, **changes: Any) -> dict[str, float]:
    settings = {
        "steps": 3,
        "batch": {"prompts": 8, "group_size": 4},
        "eval": {"every": 0, "final_prompts": 16},
    } | changes
    with counted_requests() as requests:
        launch(folder, **settings)
    sums = closed(folder)
    if "task" not in changes:  # episodes ask turn by turn
        assert sums["rows_sampled"] == len(requests), "every completion that was requested of the sampler in training"
    assert sums["prompts_sampled"] == prompts_dealt(folder)
    return sums


def test_nothing_is_lost_where_nothing_fails(tmp_path: Path) -> None:
    sums = run(tmp_path / "run")
    assert sums == {
        "prompts_sampled": 24,
        "prompts_trained": 24,
        "prompts_stored": 0,
        "rows_sampled": 96,
        "rows_stored": 0,
        "rows_used": 96,
    }


@pytest.mark.parametrize(
    ("function", "mode", "reasons"),
    [
        ("sevens_fail", "drop_group", {"error"}),
        ("sevens_are_nan", "drop_row", {"bad_value"}),
        ("sevens_hang", "drop_group", {"timeout", "group"}),
        ("not_for_sevens", "drop_group", {"not_applicable"}),
        ("short_fail", "drop_group", {"error", "group"}),
        ("short_fail", "drop_row", {"error"}),
    ],
)
def test_failed_rewards(tmp_path: Path, function: str, mode: str, reasons: set[str]) -> None:
    path = tmp_path / "rewards.py"
    path.write_text(REWARDS)
    reward = {
        "function": f"{path}:{function}",
        "on_error": mode,
        "max_failed_fraction": 1.0,
        "timeout": 0.3,
        "workers": 2,
        "self_test": False,
    }
    sums = run(tmp_path / "run", reward=reward)
    assert {name.removeprefix("rows_lost/") for name in sums if name.startswith("rows_lost/")} == reasons
    if function == "sevens_fail":
        assert sums["rows_lost/error"] == 4 * sums["prompts_lost/error"]


def test_refilled_prompts(tmp_path: Path) -> None:
    path = tmp_path / "rewards.py"
    path.write_text(REWARDS)
    reward = {"function": f"{path}:never", "self_test": False}
    sums = run(tmp_path / "run", method={"name": "dapo", "max_rounds": 3}, reward=reward)
    assert sums["prompts_sampled"] == sums["prompts_lost/refill"] == 3 * 3 * 8
    assert sums["rows_used"] == 0


METHODS: dict[str, Any] = {
    "probes": ({"name": "dots", "reference": 4}, "prompts_lost/not_completed"),
    "allocation": ("knapsack_rl", None),
    "solved": ({"name": "self", "solved": -1.0}, "prompts_lost/not_completed"),
    "hints": ({"name": "ghpo", "hint_start": 0}, "rows_lost/augment"),
    "replay": ("skywork_r1v2", "rows_stored"),
    "policies": ({"name": "remix", "reincarnation": 3}, "rows_stored"),
    "pruned": ("cppo", "rows_lost/masked"),
    "greedy": ("remax", "rows_lost/probe"),
    "ladder": ({"name": "scaf_grpo", "hint_start": 0}, None),
    "pairs": ("share_grpo", None),
    "continuations": ("pppo", "rows_lost/probe"),
    "before the first step": ("vapo", "rows_lost/pretraining"),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_choose_replace_store_and_prune(tmp_path: Path, name: str) -> None:
    method, expected = METHODS[name]
    sums = run(tmp_path / "run", method=method, data={"prompts": 12}, steps=4)
    if expected is not None:
        assert sums[expected] > 0


def test_episodes_without_an_action(tmp_path: Path) -> None:
    sums = run(tmp_path / "run", task=f"{toy_envs.__file__}:AskTask", warmup={"steps": 0}, method="gigpo")
    assert sums["rows_sampled"] == sums["rows_used"] == 96


class Rows:
    """Rows that have nothing but their names."""

    def __init__(self, *keys: tuple[int, int, int]) -> None:
        self.row_keys = list(keys)
        self.extras: dict[str, Any] = {}


class Judged:
    """A prepared batch that knows only which rows count."""

    def __init__(self, *active: bool) -> None:
        import torch

        self.active_bt = torch.tensor([[x] for x in active])


def test_a_prompt_is_lost_to_what_took_its_last_completion() -> None:
    sampled: Any = Rows((0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (2, 0, 0), (4, 0, 0))
    fates = np.array(["error", "refill", "error", "group", "", ""])
    wanted: Any = Rows((2, 0, 0), (4, 0, 0), (-1, 0, 0), (-1, 1, 0))
    prepared: Any = Judged(True, False, True, False)
    assert account(range(5), sampled, fates, wanted, prepared) == {
        "rows_sampled": 6,
        "rows_stored": 2,
        "rows_used": 2,
        "tokens_sampled": 0,
        "rows_lost/error": 2,
        "rows_lost/group": 1,
        "rows_lost/refill": 1,
        "rows_lost/masked": 2,
        "prompts_sampled": 5,
        "prompts_stored": 1,
        "prompts_trained": 2,
        "prompts_lost/not_completed": 1,
        "prompts_lost/group": 1,
        "prompts_lost/refill": 1,
        "prompts_lost/masked": 1,
    }


def test_rows_that_are_elsewhere_are_not_lost() -> None:
    sampled: Any = Rows((0, 0, 0), (0, 1, 0), (1, 0, 0), (2, 0, 0), (2, 1, 0))
    fates = np.array(["", "sent", "buffered", "error", "sent"])
    found = account(range(3), sampled, fates, Rows((0, 0, 0)), Judged(True))  # type: ignore[arg-type]
    assert (found["rows_used"], found["rows_sent"], found["rows_buffered"], found["rows_lost/error"]) == (1, 2, 1, 1)
    assert (found["prompts_trained"], found["prompts_buffered"], found["prompts_sent"]) == (1, 1, 1)
    assert "prompts_lost/error" not in found
    assert in_words(totals([{"phase": "train", **found}])) == (
        "3 prompts sampled: 1 trained on, 1 stored for later steps, 1 sent to another trainer. "
        "5 completions sampled: 1 used, 1 stored for later steps, 2 sent to another trainer, 1 lost (error)."
    )


ARCHER = {"name": "archer", "critic_steps": 3, "critic_batch": 8, "actions": 6, "warmup": 1, "width": 8}


def test_rows_whose_turns_wait_in_a_store_are_kept(tmp_path: Path) -> None:
    batch = {"prompts": 8, "group_size": 4, "minibatches": 1}
    sums = run(tmp_path / "run", task=f"{toy_envs.__file__}:AskTask", warmup={"steps": 0}, method=ARCHER, batch=batch)
    assert sums["rows_buffered"] == 64  # of the two steps after the critic's warm-up
    assert sums["prompts_buffered"] == 16
    assert sums["rows_stored"] == sums["prompts_stored"] == 12  # actions at stored observations
    assert sums["rows_lost/probe"] == 2 * (3 * 8 + 6) + 3 * 8
    assert sums["rows_sampled"] == 96 + sums["rows_lost/probe"]


def test_the_counter_of_the_source_is_the_number_requested() -> None:
    from grouprl.tasks import load_task

    source = PromptStream(load_task("addition"), 0)
    source.requests(3, 2)
    assert source.sampled == 3


def test_the_account_in_words() -> None:
    records: list[dict[str, Any]] = [
        {"phase": "eval", "prompts_sampled": 99},
        {"phase": "train", "prompts_sampled": 1200, "prompts_trained": 1190, "prompts_lost/error": 10}
        | {"rows_sampled": 2400, "rows_stored": 0, "rows_used": 2380, "rows_lost/error": 20, "rows_trained": 0.5},
        {"phase": "train", "prompts_sampled": 4, "prompts_trained": 3, "prompts_lost/refill": 1}
        | {"rows_sampled": 8, "rows_stored": 2, "rows_used": 8, "rows_lost/refill": 2},
    ]
    assert in_words(totals(records)) == (
        "1,204 prompts sampled: 1,193 trained on, 10 lost (error), 1 lost (refill). "
        "2,408 completions sampled and 2 stored: 2,388 used, 20 lost (error), 2 lost (refill)."
    )
    assert in_words(totals(records[:1])) == ""


def test_the_account_stands_in_summary_and_report(tmp_path: Path) -> None:
    folder = launch(tmp_path / "run").folder
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["account"]["prompts_sampled"] == summary["account"]["prompts_trained"] == 8
    assert "8 prompts sampled: 8 trained on. 32 completions sampled: 32 used." in (folder / "report.html").read_text()
