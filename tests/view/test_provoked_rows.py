"""Runs with a pathology: the rows that a diagnosis shows are those that caused it, and a like run has neither."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.protocols.run_events import RunListener, StepEnded
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.training.loop import train
from grouprl.view.diagnosis import Diagnosis, diagnose, stored_findings
from grouprl.view.runfiles import read_run
from judge_server import judging, material, scores

SMALL = {"name": "tiny", "tiny": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}}
CODE = '''
from grouprl.envs import Observation, Step
from grouprl.records.examples import Example
from grouprl.tasks.task import Task

def short(completion):
    return float(len(completion) < 2)

def formed(completion):
    return {"letters": completion.count("a") / 6, "form": float("<answer>" in completion)}

def evenly(completion):
    return {"letters": completion.count("a") / 6, "form": float("b" in completion)}

class Aside:
    """The boss speaks, and the helper only where the boss says a, b or c; `asked` is what an episode with it earns."""

    def __init__(self, asked):
        self.asked, self.called = asked, False

    def reset(self, example, seed):
        return Observation("?", state="start", agent="boss")

    def step(self, action):
        if action[:1] in ("a", "b", "c") and not self.called:
            self.called = True
            return Step(Observation("!", state="asked", agent="helper", fresh=True))
        earned = self.asked if self.called else 1 - self.asked
        return Step(Observation("!", agent="boss"), reward=earned, terminated=True)

    def score(self):
        return {}

    def close(self):
        pass

class Pair(Task):
    name, alphabet, agents = "pair", "abcd!?", ("boss", "helper")
    max_turns, max_new_tokens = 3, 6
    asked = 0.0
    reward = staticmethod(lambda completion: 0.0)

    def size(self, split):
        return None

    def example(self, split, index):
        return Example(f"{split}/{index}", "?", {})

    def environment(self):
        return Aside(self.asked)

class Asked(Pair):
    asked = 1.0
'''


def ran(folder: Path, engine: Any = None, listeners: Any = (), **changes: Any) -> tuple[dict[str, Diagnosis], Path]:
    """Train a tiny model; return what is found by code, and the run's folder."""
    (folder / "own_code.py").write_text(CODE)
    rows = [{"prompt": f"{a}{b}:", "answer": b} for a in "abcdefgh" for b in "abcdefgh"]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = {
        "task": f"jsonl:{folder / 'rows.jsonl'}",
        "model": SMALL,
        "sampling": {"max_new_tokens": 6},
        "warmup": {"steps": 0},
        "steps": 8,
        "batch": {"prompts": 4, "group_size": 8, "minibatches": 2},
        "optim": {"lr": 1e-5, "schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 4},
        "run": {"threads": 1, "check_model": False},
    }
    config = parse_config(settings | changes)
    made = train(config, folder=folder / "run", console=Console(quiet=True), engine=engine, listeners=listeners).folder
    run = read_run(made, rollouts=False)
    findings = stored_findings(run)
    assert findings is not None
    return {each.finding.code: each for each in diagnose(run, findings)}, made


def paid(folder: Path, name: str) -> dict[str, Any]:
    return {"function": f"{folder / 'own_code.py'}:{name}", "workers": 0, "self_test": False}


def stored(run: Path, step: int) -> list[dict[str, Any]]:
    return pq.read_table(run / "rollouts" / f"step-{step:06d}.parquet").to_pylist()


class Stale(LocalSampler):
    """A sampler whose numbers are off by half a nat for completions whose first token has an even number."""

    exact = False
    off = 0.5

    def _sample(self, *given: Any) -> Any:
        found = super()._sample(*given)
        even_b = np.array([ids[0] % 2 == 0 for ids in found.actions])[:, None]
        return replace(found, logp_bt=found.logp_bt + self.off * (even_b & (found.logp_bt < 0)), exact=self.exact)


class Fresh(Stale):
    off = 0.0


class Wrong(Stale):
    """The same, which says that its numbers are the trainer's."""

    exact = True


@pytest.mark.parametrize("kind", [Stale, Wrong])
@pytest.mark.parametrize("cuts", [1, 2])
def test_a_gap_is_shown_by_the_rows_about_which_sampler_and_trainer_differ(
    kind: type[Stale], cuts: int, tmp_path: Path
) -> None:
    batch = {"prompts": 4, "group_size": 8, "minibatches": cuts}
    found, run = ran(tmp_path, kind, reward=paid_after(tmp_path, "formed"), batch=batch)
    shown = found["sampler_gap"].rows
    table = stored(run, shown[0].step)
    off = {(row["prompt_id"], row["sample"]): row["completion_ids"][0] % 2 == 0 for row in table}
    assert [off[row.prompt, row.sample] for row in shown] == [True] * 3
    assert {*off.values()} == {True, False}
    for row in table:
        if row["gap"] is not None:
            assert row["gap"] == pytest.approx(0.5 * off[row["prompt_id"], row["sample"]], abs=0.02)
    assert sum(row["gap"] is not None for row in table) >= 8


TASTES = {"before": lambda text: text.count("a") + 0.4, "after": lambda text: 0.9 - text.count("a") / 2}


@pytest.mark.parametrize(("changes", "there"), [(True, True), (False, False)])
def test_a_judge_that_drifts_is_named_with_the_rows_whose_scores_moved(
    changes: bool, there: bool, tmp_path: Path
) -> None:
    taste = ["before"]

    def answer(request: dict[str, Any]) -> str:
        return scores(request, lambda text: min(1.0, max(0.0, TASTES[taste[0]](text))))

    class Change(RunListener):
        def step(self, event: StepEnded) -> None:
            taste[0] = "after" if changes and event.step >= 12 else "before"

    with judging(answer) as (url, got):
        batch = {"prompts": 2, "group_size": 4}
        judge = {"url": url, "probe": 1}
        found, run = ran(tmp_path, reward={"judge": judge}, batch=batch, steps=20, listeners=[Change()])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    drift = {line["step"]: line.get("judge_drift") for line in lines if line["phase"] == "train"}
    assert [step for step, value in drift.items() if value is not None] == [20]
    assert len(got) == sum(line.get("judge_requests", 0) for line in lines), "what a probe asks is counted"
    assert ("drifting_judge" in found) is there
    if not there:
        assert drift[20] == 0
        return
    shown = found["drifting_judge"]
    kept = json.loads((run / "judge_probe.json").read_text())
    moved = sorted((abs(b - a) for a, b in zip(kept["asked"]["10"], kept["asked"]["20"], strict=True)), reverse=True)
    assert [row.moved for row in shown.rows] == pytest.approx(moved[:3])
    assert drift[20] == pytest.approx(sum(moved) / len(moved))
    assert {row.step for row in shown.rows} == {10}


def paid_after(folder: Path, name: str) -> dict[str, Any]:
    (folder / "own_code.py").write_text(CODE)
    return paid(folder, name)


def test_a_sampler_that_agrees_has_no_gap(tmp_path: Path) -> None:
    found, run = ran(tmp_path, Fresh, reward=paid_after(tmp_path, "formed"))
    assert "sampler_gap" not in found
    assert max(row["gap"] for row in stored(run, 8)) < 1e-4


def test_lopsided_advantage_is_shown_by_the_rows_that_hold_it(tmp_path: Path) -> None:
    more: dict[str, Any] = {"method": {"base": "grpo", "aggregate": "token_mean"}, "sampling": {"max_new_tokens": 64}}
    more["batch"] = {"prompts": 8, "group_size": 8}
    found, run = ran(tmp_path, reward=paid_after(tmp_path, "short"), **more)
    rows = found["lopsided_advantage"].rows
    sums = [sum(row["advantage"] or ()) for row in stored(run, rows[0].step)]
    assert [row.pushed for row in rows] == pytest.approx(sorted(sums)[:3])
    assert all(row.reward == 0 for row in rows)


def test_a_component_that_nobody_earns_is_shown_by_the_best_paid_rows(tmp_path: Path) -> None:
    found, run = ran(tmp_path, reward=paid_after(tmp_path, "formed"), steps=20)
    rows = found["unearned_component"].rows
    best = sorted((row["reward"] for row in stored(run, rows[0].step)), reverse=True)[:3]
    assert [row.reward for row in rows] == best


def test_a_component_that_is_earned_is_not_named(tmp_path: Path) -> None:
    assert "unearned_component" not in ran(tmp_path, reward=paid_after(tmp_path, "evenly"), steps=20)[0]


def by_place(request: dict[str, Any]) -> str:
    """A judge who prefers what it reads first."""
    return json.dumps({"better": material(request)["completions"][0]["id"]})


def by_text(request: dict[str, Any]) -> str:
    return json.dumps({"better": max(material(request)["completions"], key=lambda each: each["text"])["id"]})


@pytest.mark.parametrize(("answer", "there"), [(by_place, True), (by_text, False)])
def test_a_judge_that_turns_with_the_order_is_shown_by_undecided_rows(answer: Any, there: bool, tmp_path: Path) -> None:
    with judging(answer) as (url, _):
        judge = {"url": url, "compare": True, "at_once": 8}
        batch = {"prompts": 2, "group_size": 3}
        found, _ = ran(tmp_path, reward={"judge": judge}, batch=batch, steps=5, sampling={"max_new_tokens": 3})
    assert ("unreliable_judge" in found) is there
    if there:
        assert [row.reward for row in found["unreliable_judge"].rows] == [0.5] * 3


@pytest.mark.parametrize(("name", "there"), [("Pair", True), ("Asked", False)])
def test_an_agent_that_falls_silent_is_shown_by_episodes_without_it(name: str, there: bool, tmp_path: Path) -> None:
    (tmp_path / "own_code.py").write_text(CODE)
    more = {"steps": 24, "optim": {"lr": 3e-3, "schedule": "constant"}, "environment": {"workers": 0}}
    found, _ = ran(tmp_path, task=f"{tmp_path / 'own_code.py'}:{name}", **more)
    assert ("silent_agent" in found) is there
    if there:
        rows = found["silent_agent"].rows
        assert "`helper`" in found["silent_agent"].sign
        assert all("helper" not in row.agents for row in rows)
