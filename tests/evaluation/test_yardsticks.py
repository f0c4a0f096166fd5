"""Yardsticks of an evaluation: what they record, that they train nothing, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import grouprl
from grouprl.evaluation.yardsticks import load_yardsticks, measure
from grouprl.records.examples import Example
from short_runs import SMALL, quiet

SOURCE = """
def letters(completion, *, answer):
    return float(len(completion)) + 0 * len(answer)

def short(completion):
    return None if len(completion) > 3 else 1.0

def broken(completion):
    raise ValueError("no")
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(SOURCE, encoding="utf-8")
    return path


def examples(count: int) -> list[Example]:
    return [Example(id=f"e{n}", prompt="p", columns={"answer": "xy"}) for n in range(count)]


def test_values_are_those_of_the_function(own: Path) -> None:
    found = measure(load_yardsticks([f"{own}:letters", f"{own}:short"]), examples(2), ["ab", "abcd"])
    assert found["letters"].tolist() == [2.0, 4.0]
    assert found["short"][0] == 1.0
    assert np.isnan(found["short"][1])  # None: it does not apply


def test_what_is_refused(own: Path) -> None:
    with pytest.raises(grouprl.InputError, match="'letters' twice"):
        load_yardsticks([f"{own}:letters"] * 2)
    with pytest.raises(grouprl.RunError, match=r"'broken' failed.*ValueError"):
        measure(load_yardsticks([f"{own}:broken"]), examples(1), ["a"])
    with pytest.raises(grouprl.RunError, match=r"'short' returned None for each of 2 completions"):
        measure(load_yardsticks([f"{own}:short"]), examples(2), ["abcd", "abcde"])
    with pytest.raises(grouprl.InputError, match="lettres"):
        grouprl.plan({**SMALL, "eval": {"metrics": [f"{own}:lettres"]}})


def test_a_run_records_it_with_interval_and_gain_and_trains_on_it_no_more(own: Path, tmp_path: Path) -> None:
    def made(name: str, metrics: list[str]) -> list[dict]:
        settings = {**SMALL, "eval": {**SMALL["eval"], "metrics": metrics}}
        run = grouprl.train(settings, folder=tmp_path / name, console=quiet())
        assert run is not None
        return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]

    with_it, without = made("with", [f"{own}:letters"]), made("without", [])
    first, last = (record for record in with_it if record["phase"] == "eval")
    assert first["eval/metric/letters"] > 0
    assert first["eval/metric/letters_low"] <= first["eval/metric/letters"] <= first["eval/metric/letters_high"]
    assert "eval/metric/letters_gain" in last
    for ours, theirs in zip(with_it, without, strict=True):
        assert {k: v for k, v in ours.items() if k in theirs and "second" not in k and "memory" not in k} == {
            k: v for k, v in theirs.items() if "second" not in k and "memory" not in k
        }
    again = grouprl.evaluate(tmp_path / "with")
    assert again.by_prompt["metric/letters"].estimate().value == pytest.approx(last["eval/metric/letters"])
