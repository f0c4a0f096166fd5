"""The examples of README and docs: each runs, small, as its page shows it, and what is recorded of it is current."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import examples
from grouprl.config.run import parse_config
from grouprl.training.loop import train

RECORDED = json.loads(examples.JSON.read_text(encoding="utf-8"))
every_example = pytest.mark.parametrize("example", examples.EXAMPLES, ids=lambda example: example.name)


@every_example
def test_an_example_runs(example: examples.Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing := examples.lacking(example):
        pytest.skip(f"{missing} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", examples.own_python_first())
    with examples.served(example, examples.stage(example, tmp_path)) as data:
        runs_small(example, data, tmp_path)


def runs_small(example: examples.Example, data: examples.Settings, folder: Path) -> None:
    small = {"steps": 1, "eval": {"every": 0, "final_prompts": 4}, "run": {"threads": 1}}
    small["batch"] = {"prompts": 2, "group_size": 2}
    if "warmup" in data:
        small["warmup"] = {"steps": 1, "batch": 4}
    silent = Console(file=io.StringIO())
    outcome = train(parse_config({**data, **small}), folder=folder / "run", console=silent)
    if example.partner is not None:  # what the first trainer has left is enough for the second
        other = parse_config({**examples.partner(example, data), **small})
        assert not train(other, folder=folder / "partner", console=silent).interrupted
    steps = [json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text().splitlines()]
    (trained,) = (step for step in steps if step["phase"] == "train")
    assert trained["prompts_sampled"] >= 2, "more where groups without a spread are sampled again"
    assert not outcome.interrupted


@pytest.mark.parametrize(
    "example", [each for each in examples.EXAMPLES if not each.unrecorded], ids=lambda each: each.name
)
def test_what_is_recorded_of_an_example_is_current_and_it_learned(example: examples.Example) -> None:
    found = next((record for record in RECORDED if record["name"] == example.name), None)
    assert found is not None, "run: python scripts/examples.py"
    assert found["version"] == examples.version(example), "run: python scripts/examples.py"
    assert examples.learned(found)


def test_the_page_says_of_every_example_that_it_learned_or_why_that_is_not_shown() -> None:
    page = examples.PAGE.read_text(encoding="utf-8")
    for example in examples.EXAMPLES:
        assert f"| {example.name} | " in page
        assert example.unrecorded == "" or f" | {example.unrecorded} |" in page


def test_the_page_is_made_from_the_record() -> None:
    assert examples.PAGE.read_text(encoding="utf-8") == examples.page(RECORDED), "run: python scripts/examples.py"


def test_learning_is_a_gain_whose_interval_lies_above_zero() -> None:
    def found(before: float, after: float) -> dict:
        sides = {"before": before, "after": after}
        ends = {"": 0.0, "_low": -0.05, "_high": 0.05}
        numbers = {side: {f"pass@1{end}": x + by for end, by in ends.items()} for side, x in sides.items()}
        return {"measure": "pass@1", **numbers}

    assert examples.learned(found(0.4, 0.48))
    assert not examples.learned(found(0.4, 0.47))  # 0.07 less 0.05·√2 is below 0
    assert not examples.learned(found(0.5, 0.3))
