"""Yardsticks of an evaluation: what they record, that they train nothing, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import grouprl
from grouprl.cli.app import app
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


def test_a_name_at_which_the_record_has_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    names = ("short", "short_low", "short_gain_high", "low", "tall_gain")
    path.write_text("".join(f"def {name}(completion):\n    return 1.0\n" for name in names), encoding="utf-8")
    for other in ("short_low", "short_gain_high"):
        with pytest.raises(grouprl.InputError, match=f"'short' and '{other}'"):
            load_yardsticks([f"{path}:{other}", f"{path}:short"])
    assert list(load_yardsticks([f"{path}:{name}" for name in ("short", "low", "tall_gain")]))  # nothing else is theirs


def test_one_that_applies_to_nothing_has_no_value_and_stops_no_run(own: Path, tmp_path: Path) -> None:
    own.write_text("def never(completion):\n    return None\n", encoding="utf-8")
    settings = {**SMALL, "eval": {**SMALL["eval"], "metrics": [f"{own}:never"], "best": "never"}}
    run = grouprl.train(settings, folder=tmp_path / "run", console=quiet())
    assert run is not None
    assert not (run.folder / "best.json").exists()
    assert "eval/metric/never" not in (run.folder / "metrics.jsonl").read_text(encoding="utf-8")
    found = grouprl.evaluate(run.folder)
    assert not found.yardsticks
    assert "metric/never applies to none of the completions" in " ".join(found.notes)


def test_they_are_on_the_page_and_in_the_table_of_an_evaluation(own: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "eval": {**SMALL["eval"], "metrics": [f"{own}:letters"]}}
    run = grouprl.train(settings, folder=tmp_path / "run", console=quiet())
    assert run is not None
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "Yardstick: letters" in page
    assert "Yardsticks besides the reward" in page
    told = CliRunner().invoke(app, ["eval", str(run.folder), "--prompts", "4"])
    assert told.exit_code == 0, told.output
    assert "metric/letters" in told.output


def test_a_reward_model_has_nothing_that_they_could_measure(own: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"{n}+2", "chosen": str(n + 2), "rejected": "no"} for n in range(12)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = {**SMALL, "task": f"pairs:{pairs}", "method": "bradley_terry", "sampling": {}}
    (said,) = [
        str(each)
        for each in grouprl.plan(settings, [f"eval.metrics=[{own}:letters]"]).findings
        if each.severity == "refusal"
    ]
    assert "a reward model writes none" in said
    with pytest.raises(grouprl.InputError, match=r"eval.best = letters.*pair_accuracy"):
        grouprl.plan(settings, [f"eval.metrics=[{own}:letters]", "eval.best=letters"])


def test_one_that_changes_its_columns_changes_no_answer(own: Path) -> None:
    own.write_text("def spoils(completion, *, answer):\n    answer.clear()\n    return 1.0\n", encoding="utf-8")
    example = Example(id="e", prompt="p", columns={"answer": ["4"]})
    measure(load_yardsticks([f"{own}:spoils"]), [example], ["4"])
    assert example.columns == {"answer": ["4"]}
