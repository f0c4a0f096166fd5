"""`grouprl laws`: the laws found again in a run's records, with intervals that hold the truth."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.core.errors import InputError
from grouprl.monitor.run_laws import curve, entropy_law, sigmoid_law

STEPS = 60


def sigmoid(tokens: float) -> float:
    return 0.1 + 0.6 / (1 + (4000.0 / tokens) ** 2) if tokens else 0.1


def logged(noise: float = 0.0) -> list[dict]:
    """A run of 200 tokens a step whose entropy is -log of what it has gained, so that R = 0.9 - 0.2·e^H."""
    rng, found = np.random.default_rng(0), []
    for step in range(1, STEPS + 1):
        rate = sigmoid(200.0 * (step - 1)) + noise * float(rng.normal())
        found.append({"phase": "train", "step": step, "tokens": 150.0, "tokens_sampled": 200.0, "pass@1": rate})
        found[-1] |= {"entropy": math.log((0.9 - rate) / 0.2), "seconds_rollout": 0.25, "seconds_update": 0.25}
    held_out = [{"phase": "eval", "step": s, "eval/pass@1": sigmoid(200.0 * s)} for s in range(0, STEPS + 1, 10)]
    return [*found, *held_out]


def test_the_points_of_a_run() -> None:
    points = curve(logged())
    assert (len(points.reward_n), points.start) == (STEPS, pytest.approx(0.1))
    assert list(points.compute_n[:3]) == [0.0, 200.0, 400.0], "spent before the step's completions, probes included"
    held_out = curve(logged(), "eval", "steps")
    assert list(held_out.compute_n) == [0, 10, 20, 30, 40, 50, 60]
    assert held_out.entropy_n[1] == pytest.approx(points.entropy_n[10]), "the same policy sampled step 11"
    assert math.isnan(held_out.entropy_n[-1])
    assert curve(logged(), compute="seconds").compute_n[2] == pytest.approx(1.0)


def test_the_entropy_law_is_found_with_intervals() -> None:
    exact = entropy_law(curve(logged()))
    assert (exact.numbers["a"].value, exact.numbers["b"].value) == pytest.approx((0.2, 0.9))
    assert exact.numbers["ceiling"].value == pytest.approx(0.7)
    held_out = entropy_law(curve(logged(), "eval"))
    assert (held_out.points, held_out.numbers["b"].value) == (6, pytest.approx(0.9))


def test_the_sigmoid_law_is_found_with_intervals() -> None:
    noisy = sigmoid_law(curve(logged(noise=0.01)))
    for name, truth in {"ceiling": 0.7, "exponent": 2.0, "midpoint": 4000.0}.items():
        one = noisy.numbers[name]
        assert one.low is not None
        assert one.low < one.value < one.high
        assert one.low * 0.95 <= truth <= one.high * 1.05
    wide = sigmoid_law(curve(logged(noise=0.03))).numbers["ceiling"]
    assert wide.high - wide.low > noisy.numbers["ceiling"].high - noisy.numbers["ceiling"].low


def test_a_run_that_ends_early_is_said_to() -> None:
    short = [r for r in logged() if r["phase"] == "train"][:12]
    assert "before half" in sigmoid_law(curve(short)).warnings[0]


def test_what_a_run_lacks_is_said() -> None:
    with pytest.raises(InputError, match="no training steps"):
        curve([])
    with pytest.raises(InputError, match="no evaluations"):
        curve([r for r in logged() if r["phase"] == "train"], "eval")


def run_folder(path: Path, records: list[dict]) -> Path:
    path.mkdir()
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def call(*arguments: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["laws", *arguments])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout


def test_the_command(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "one", logged(noise=0.01))
    table = call(str(folder))
    assert "entropy" in table
    assert "sigmoid" in table
    assert "ceiling 0." in table
    data = json.loads(call(str(folder), "--json"))
    assert [each["law"] for each in data] == ["entropy", "sigmoid"]
    assert set(data[0]["numbers"]["a"]) == {"value", "low", "high"}


def test_a_law_that_cannot_be_fitted_is_named_and_the_other_given(tmp_path: Path) -> None:
    flat = [r | {"pass@1": 0.2} for r in logged() if r["phase"] == "train"]
    text = call(str(run_folder(tmp_path / "flat", flat)))
    assert "no pass rate exceeds" in text.replace("\n", " ")
    none = [r | {"entropy": 1.0} for r in flat]
    call(str(run_folder(tmp_path / "none", none)), code=1)
    call(str(tmp_path / "absent"), code=2)
