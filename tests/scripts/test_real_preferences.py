"""Preferences on a pretrained model: pairs, the choice of rates, and a page that says what the record says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import real
import real_pairs
import real_preferences
import real_preferences_report as report
from grouprl.config.run import load_config
from grouprl.core.errors import RunError
from grouprl.evaluation.sample_and_score import Completions
from grouprl.records.examples import Example
from grouprl.tasks import load_task
from page_record import fill
from pooled_runs import RunQueue
from real_preferences_report import Record

SUMS = (Example("a", "1+1=", {}), Example("b", "2+2=", {}))


def completions(*rows: tuple[str, bool, bool, int]) -> Completions:
    """Two prompts' completions: text, whether right, whether truncated, tokens."""
    texts, right, late, lengths = zip(*rows, strict=True)
    return cast(
        Completions,
        SimpleNamespace(
            each=len(rows) // 2,
            texts=texts,
            length_b=np.array(lengths, float),
            truncated_b=np.array(late, float),
            scores=SimpleNamespace(correct_b=np.array(right)),
        ),
    )


def said(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(line["chosen"][0]["content"], line["rejected"][0]["content"]) for line in lines]


def test_a_pair_has_a_right_completion_that_ends_and_a_wrong_one_each_once() -> None:
    sampled = completions(
        *(("2", True, False, 2), ("2", True, False, 2), (" 3 ", False, False, 2), ("", False, False, 1)),
        *(("4, as", True, True, 20), ("4, is it", True, False, 18), ("5", False, False, 2), ("6", False, True, 20)),
    )
    assert said(list(real_pairs.pairs(SUMS, sampled))) == [("2", "3")]


def test_labels_are_of_both_completions_and_those_of_a_pair_stand_apart() -> None:
    lines: list[real_pairs.Line] = [{"prompt": f"p{n}", "chosen": f"c{n}", "rejected": f"r{n}"} for n in range(4)]
    found = list(real_pairs.labels(lines))
    assert [each["completion"] for each in found] == ["c0", "r2", "c1", "r3", "c2", "r0", "c3", "r1"]
    assert all(each["prompt"] == f"p{str(each['completion'])[1]}" for each in found)


def test_stored_pairs_are_of_sums_that_are_not_held_out() -> None:
    held_out = {
        load_task(f"{real.RECIPES / 'tasks.py'}:Sums").example("eval", n).prompt[0]["content"] for n in range(400)
    }
    for path, inside in ((real_pairs.PAIRS, False), (real_pairs.LABELS, False), (real_pairs.HELD_OUT, True)):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert {line["prompt"][0]["content"] in held_out for line in lines} == {inside}


@pytest.mark.parametrize("name", real.WITH_PAIRS)
def test_recipes_are_configurations_whose_tasks_load(name: str) -> None:
    task = load_task(load_config(str(real.RECIPES / f"{name}.yaml")).task)
    assert task.example("train", 0).prompt


def record(arm: str, seed: int, tuning: bool = False, lr: float = 1e-5, steps: int = 12, **after: float) -> Record:
    ends = {f"{kind}{end}": 0.5 for kind in real_preferences.MEASURES for end in ("", "_low", "_high")}
    gains = {f"{kind}_gain{end}": 0.1 for kind in real_preferences.MEASURES for end in ("", "_low", "_high")}
    known = {"arm": arm, "seed": seed, "tuning": tuning, "lr": lr, "steps": steps, "device": "H", "precision": "mixed"}
    return {
        **known,
        "before": ends,
        "after": ends | gains | {name.replace("pass", "pass@1"): x for name, x in after.items()},
    }


class Chosen:
    """A queue that makes each run where it stands, with a better end at a larger rate."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, list[str], bool]] = []

    def submit(self, rank: float, key: str, make: Any, known: Record, recipe: str, given: list[str], at: Path) -> Any:
        self.asked.append((known["arm"], known["seed"], given, known["tuning"]))
        (lr,) = [float(each.partition("=")[2]) for each in given if each.startswith("optim.lr=")]
        row = record(known["arm"], known["seed"], known["tuning"], lr, greedy=lr, pair_accuracy=lr)
        return SimpleNamespace(result=lambda: {**row, **known})


def test_the_better_rate_is_taken_and_each_policy_is_paid_by_the_model_of_its_seed(tmp_path: Path) -> None:
    queue = Chosen()
    runs = real_preferences.Runs(cast(RunQueue, queue), ("model.name=m",), tmp_path, tmp_path / "results.json")
    runs.compare("orpo", 2)
    asked = [(arm, seed, tuning) for arm, seed, _, tuning in queue.asked]
    assert asked[:3] == [("orpo", 7, True)] * 3
    assert sorted(asked[3:]) == [("orpo", seed, False) for seed in (0, 1)]
    assert all("optim.lr=0.00012" in given for *_, given, tuning in queue.asked if not tuning)
    runs.compare_paid(1)
    paid = [(seed, given[-1]) for arm, seed, given, tuning in queue.asked if arm == "dr_grpo" and not tuning]
    (at,) = [each for each in runs.shown if (each["arm"], each["seed"], each["tuning"]) == ("bradley_terry", 0, False)]
    assert paid == [(0, f"reward.model={runs.of(at) / 'model'}")]
    assert len(json.loads((tmp_path / "results.json").read_text())) == len(queue.asked) - 1, "a model is used alone"


def test_a_run_that_is_kept_is_read_and_one_that_fails_is_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(recipe: str, given: list[str], folder: Path) -> float:
        folder.mkdir()
        (folder / "config.yaml").write_text("task: addition\noptim: {lr: 0.5}\n")
        raise RunError("the loss is nan")

    monkeypatch.setattr(real, "trained", fails)
    call = ({"arm": "kto", "seed": 7, "tuning": True}, "preferred_labels", [], tmp_path / "run")
    found = real_preferences.make(*call)
    assert (found["error"], found["lr"], report.good(found)) == ("the loss is nan", 0.5, -math.inf)
    monkeypatch.setattr(real, "trained", None)
    assert real_preferences.make(*call) == found
    assert "| kto | 0.5 | failed |  |" in report.tables([found])["pretrained rates"]


def test_gains_of_several_seeds_have_an_interval_over_seeds_and_one_has_that_over_prompts() -> None:
    two = [record("dpo", seed, pass_gain=0.1 * seed) for seed in (1, 2)]
    assert report.gain(two[:1], "greedy") == (0.1, 0.1, 0.1)
    low, middle, high = report.gain(two, "pass@1")
    assert (low, middle, high) == pytest.approx((0.15 - 0.6353, 0.15, 0.15 + 0.6353), abs=1e-4)  # 12.706 · 0.0707 / √2


def test_a_difference_from_the_rival_is_of_the_seeds_of_both_and_of_one_newcombe_s() -> None:
    one = record("kto", 0, **{"pass": 0.6, "pass_low": 0.5, "pass_high": 0.7})
    other = record("dpo", 0, **{"pass": 0.3, "pass_low": 0.2, "pass_high": 0.4})
    gap = report.beside([one, record("kto", 9)], [other])
    assert gap == pytest.approx((0.3 - math.sqrt(0.02), 0.3, 0.3 + math.sqrt(0.02)))  # √(0.1² + 0.1²) to either side
    assert report.beside([other], [other]) is None
    assert report.beside([one], []) is None
    again = [record("kto", 1, **{"pass": 0.8}), record("dpo", 1, **{"pass": 0.5})]
    assert report.beside([one, again[0]], [other, again[1]]) == pytest.approx((0.3, 0.3, 0.3))


def test_what_is_not_shown_is_said_first_and_a_rate_at_the_end_is_marked() -> None:
    lower = {"greedy_gain_low": -0.1, "pass_gain_low": -0.2}
    tries = [record("kto", 7, True, lr, 6) for lr in (1e-5, 2e-5, 4e-5)]
    found = [*tries, record("dpo", 0), record("kto", 0, lr=4e-5, **lower)]
    tables = report.tables(found)
    lines = tables["pretrained words"].splitlines()
    assert lines[0] == "**No gain is shown** of `kto` (greedily), `kto` (sampled)."
    assert lines[1] == "**No difference from DPO is shown**, sampled, of `kto`."
    assert lines[2].endswith("may lie beyond: `kto`.")
    assert lines[3] == "Seeds of a method: 1. Run on H, products in mixed."
    assert "| kto | 4e-05 | 0.500 | chosen* |" in tables["pretrained rates"]
    assert "| dpo | 1e-05 | 12 | 1 | 0.500 → 0.500 | +0.100 [+0.100, +0.100] |" in tables["pretrained"]


def test_a_cut_off_call_with_runs_that_tune_alone_has_tables() -> None:
    tables = report.tables([record("dpo", 7, True, 1e-5, 6)])
    assert "| dpo | 1e-05 | 0.500 |  |" in tables["pretrained rates"]
    assert tables["pretrained words"] == "Seeds of a method: 0. Run on H, products in mixed."


def test_the_page_is_as_the_record_has_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(real_preferences.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    fill(page, report.tables(real_preferences.records()))
    assert page.read_text(encoding="utf-8") == real_preferences.PAGE.read_text(encoding="utf-8")
