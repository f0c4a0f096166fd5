"""`eval.best`: which evaluation is the best, that its checkpoint is kept, and that a resumed run keeps the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import grouprl
from grouprl.cli.app import app
from grouprl.evaluation.best import Best, best_of, check_measure, measures
from grouprl.evaluation.evaluate import Evaluation
from grouprl.evaluation.gain import PromptValues
from grouprl.evaluation.pass_at_k import Estimate
from grouprl.storage.checkpoint import find_checkpoint
from grouprl.training.export import load_trained
from short_runs import SMALL, quiet

OWN = """
STEPS = iter([{values}])
NOW = [0, 0.0]

def wanted(completions):
    return [next_value() for _ in completions]

def next_value():
    if NOW[0] % 4 == 0:  # an evaluation has four prompts
        NOW[1] = next(STEPS)
    NOW[0] += 1
    return NOW[1]
"""


def evaluation(**measures: list[float]) -> Evaluation:
    values = {name: PromptValues.of(np.array(each), 1, shares=False, most=9) for name, each in measures.items()}
    return Evaluation(4, 1, 1.0, None, {}, Estimate(0.0, 0.0, 0.0), {}, 1.0, 0.0, 0, (), by_prompt=values)


def test_the_largest_mean_is_the_best_and_of_equal_ones_the_first() -> None:
    first = best_of(None, evaluation(reward=[1, 3]), "reward", 0, 2)
    assert (first and (first.step, first.value, first.prompts)) == (0, 2.0, 2)
    assert best_of(first, evaluation(reward=[2, 2]), "reward", 5, 2) is first
    assert best_of(first, evaluation(reward=[1, 2]), "reward", 5, 2) is first
    later = best_of(first, evaluation(reward=[3, 2]), "reward", 5, 2)
    assert later is not None
    assert (later.step, later.value) == (5, 2.5)


def test_only_the_prompts_that_all_evaluations_have_count() -> None:
    found = best_of(None, evaluation(reward=[1, 1, 9, 9]), "eval/reward", 0, 2)
    assert found is not None
    assert (found.value, found.prompts) == (1.0, 2)


def test_a_yardstick_is_named_by_itself_and_unknown_values_never_win() -> None:
    found = best_of(None, evaluation(**{"metric/useful": [1, float("nan")], "useful": [5, 5]}), "useful", 3, 2)
    assert found is not None
    assert (found.measure, found.value, found.prompts) == ("metric/useful", 1.0, 1)
    assert (found.value, found.prompts, found.asked) == (1.0, 1, 2)
    assert "(1 on 1 of 2 prompts)" in found.words()
    nothing = evaluation(**{"metric/useful": [float("nan")] * 2})
    assert best_of(None, nothing, "useful", 4, 2) is None
    assert best_of(found, nothing, "useful", 4, 2) is found


def test_a_component_that_an_evaluation_lacks_does_not_win() -> None:
    found = best_of(None, evaluation(**{"reward": [1, 1], "reward/part": [1, 2]}), "reward/part", 3, 2)
    assert found is not None
    assert best_of(found, evaluation(reward=[1, 1]), "eval/reward/part", 4, 2) is found
    assert best_of(None, evaluation(reward=[1, 1]), "reward/part", 4, 2) is None


def test_measures_that_evaluations_will_not_have_are_refused_before_the_run() -> None:
    policy = measures(["useful"], [1, 4], ranks=False, samples=True)
    for name in ("", "useful", "eval/metric/useful", "pass@4", "greedy", "reward", "reward/part"):
        check_measure(name, policy)
    for known, name in (
        (policy, "pass@2"),
        (policy, "pair_accuracy"),
        (measures([], [1], ranks=False, samples=False), "pass@1"),
        (measures(["useful"], [1], ranks=True, samples=False), "useful"),
        (measures([], [1], ranks=True, samples=False), "pair_loss"),  # its largest value is the worst
        (measures([], [1], ranks=True, samples=False), "reward/part"),
    ):
        with pytest.raises(grouprl.InputError, match=r"eval\.best"):
            check_measure(name, known)


def test_an_unknown_measure_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(grouprl.InputError, match=r"eval.best = rewad.*reward"):
        best_of(None, evaluation(reward=[1.0]), "rewad", 0, 1)
    settings = {**SMALL, "eval": {**SMALL["eval"], "best": "usefull"}}
    with pytest.raises(grouprl.InputError, match="usefull"):
        grouprl.train(settings, folder=tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()


def test_infinite_ends_survive_the_file() -> None:
    best = Best("reward", 3, 1.0, -np.inf, np.inf, 1)
    assert Best.from_json(json.loads(json.dumps(best.as_json(), allow_nan=False))) == best
    assert replace(best, low=0.0).as_json()["low"] == 0.0


def settings(tmp_path: Path, values: str) -> dict[str, object]:
    own = tmp_path / "own.py"
    own.write_text(OWN.format(values=values), encoding="utf-8")
    measured = {"every": 1, "prompts": 4, "final_prompts": 4, "best": "wanted", "metrics": [f"{own}:wanted"]}
    rate, run = {"schedule": "constant"}, {"threads": 1, "keep": 1, "checkpoint_every": 1}
    return {**SMALL, "steps": 4, "optim": rate, "eval": measured, "run": run}


def test_the_best_checkpoint_outlives_newer_ones_and_is_evaluated_and_exported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    grouprl.train(settings(tmp_path, "0, 1, 3, 2, 3"), folder=run, console=quiet())
    assert json.loads((run / "best.json").read_text())["step"] == 2
    assert json.loads((run / "summary.json").read_text())["best"]["value"] == 3.0
    assert sorted(each.name for each in (run / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    weights = find_checkpoint(run, 2).weights
    found = load_trained(run, "best")
    assert found.when == "checkpoint 2"
    for name, each in found.policy.trainable_state().items():  # type: ignore[union-attr]
        assert (each == weights[name]).all()
    told = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "out"), "--checkpoint", "best", "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["wrote"] == "checkpoint 2"
    told = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "out2"), "--checkpoint", "bast"])
    assert told.exit_code == 2
    words = " ".join(told.output.replace("│", " ").split())  # the box breaks lines anywhere
    assert "'bast' is not a checkpoint" in words


def test_a_run_without_it_has_no_best_checkpoint(tmp_path: Path) -> None:
    grouprl.train(SMALL, folder=tmp_path / "run", console=quiet())
    assert not (tmp_path / "run" / "best.json").exists()
    with pytest.raises(grouprl.InputError, match="has no best checkpoint"):
        load_trained(tmp_path / "run", "best")


def test_a_resumed_run_keeps_the_same_best_checkpoint(tmp_path: Path) -> None:
    """Half a run and its continuation keep what the whole run keeps; a note without a checkpoint is taken back."""
    whole, half = tmp_path / "whole", tmp_path / "half"
    grouprl.train(settings(tmp_path, "0, 1, 3, 2, 1"), folder=whole, console=quiet())
    grouprl.train({**settings(tmp_path, "0, 1, 3"), "steps": 2}, folder=half, console=quiet())
    (half / "best.json").write_text(json.dumps({"step": 99}))
    (tmp_path / "own.py").write_text(OWN.format(values="3, 2, 1"), encoding="utf-8")  # step 2 is measured again
    grouprl.train(half, ["steps=4"], resume=True, accept_changes=True, console=quiet())
    assert (half / "best.json").read_text() == (whole / "best.json").read_text()
    assert sorted(each.name for each in (half / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    for name, each in find_checkpoint(half, 2).weights.items():
        assert (each == find_checkpoint(whole, 2).weights[name]).all()
