"""Preferences on a pretrained model: pairs, the choice of rates, and a page that says what the record says."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import real
import real_pairs
import real_preferences
from grouprl.config.run import load_config
from grouprl.evaluation.sample_and_score import Completions
from grouprl.records.examples import Example
from grouprl.tasks import load_task
from page_record import fill

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


def record(arm: str, seed: int, tuning: bool = False, lr: float = 1e-5) -> real_preferences.Record:
    ends = {f"{kind}{end}": 0.5 for kind in real_preferences.MEASURES for end in ("", "_low", "_high")}
    gains = {f"{kind}_gain{end}": 0.1 for kind in real_preferences.MEASURES for end in ("", "_low", "_high")}
    return {
        "arm": arm,
        "seed": seed,
        "changes": [f"optim.lr={lr}"],
        "version": "",
        "tuning": tuning,
        "lr": lr,
        "steps": 2,
        "before": ends,
        "after": ends | gains,
        "seconds": 90,
    }


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names = ("pretrained", "pretrained scores", "pretrained rates")
    marks = "\n".join(f"<!-- {name} -->\n<!-- end of {name} -->" for name in names)
    (tmp_path / "page.md").write_text(marks, encoding="utf-8")
    monkeypatch.setattr(real_preferences, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(real_preferences, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(real, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(real, "fetch", lambda folder: ("model", "somewhere"))
    return tmp_path


def test_the_better_rate_is_taken_and_a_recorded_run_is_not_repeated(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, ...]] = []

    def trained(recipe: str, changes: list[str], folder: Path) -> float:
        ran.append((recipe, *changes))
        return 60.0

    def read(folder: Path) -> dict[str, Any]:
        rate = next((each.partition("=")[2] for each in ran[-1] if each.startswith("optim.lr=")), "1e-5")
        whole = record("", 0, lr=float(rate))
        after = whole["after"] | {"greedy": float(rate)}  # the larger rate is the better one
        return {name: whole[name] for name in ("lr", "steps", "before")} | {"after": after}

    monkeypatch.setattr(real, "trained", trained)
    monkeypatch.setattr(real_preferences, "read", read)
    real_preferences.main(seeds=1)
    arms = len(real_preferences.METHODS)
    count = 5 + 4 + 1  # rates of three methods; a seed of these, of a reward model, and of the policy paid by it
    assert len(ran) == count
    assert [each["lr"] for each in real_preferences.records() if not each["tuning"]][:arms] == [
        max(rates) for _, rates in real_preferences.METHODS.values()
    ]
    assert any("reward.model" in change for change in ran[-1])
    real_preferences.main(seeds=1)
    assert len(ran) == count
    assert "| kto | 2e-05 | 2 | 0 | 0.500 → 0.000 |" in (docs / "page.md").read_text(encoding="utf-8")


def test_a_difference_from_the_rival_has_newcombe_s_interval() -> None:
    one, other = record("kto", 0), record("dpo", 0)
    one["after"] |= {"pass@1": 0.6, "pass@1_low": 0.5, "pass@1_high": 0.7}
    other["after"] |= {"pass@1": 0.3, "pass@1_low": 0.2, "pass@1_high": 0.4}
    assert real_preferences.beside(one, other) == "+0.300 [+0.159, +0.441]"  # √(0.1² + 0.1²) to either side
    assert real_preferences.beside(other, other) == ""
    assert real_preferences.beside(one, None) == ""


def test_the_page_is_as_the_record_has_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(real_preferences.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    fill(page, real_preferences.tables(real_preferences.records()))
    assert page.read_text(encoding="utf-8") == real_preferences.PAGE.read_text(encoding="utf-8")
