"""Runs, plans and evaluations from Python."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import grouprl
from grouprl import InputError
from grouprl.experiments.evaluating import task_spec
from grouprl.plan.plan import Plan
from grouprl.view import loaded_run
from short_runs import SMALL, quiet


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = grouprl.train(SMALL, folder=tmp_path_factory.mktemp("runs") / "small", console=quiet())
    assert made is not None
    assert made.finished
    return made.folder


def test_a_run_is_read_as_tables(folder: Path) -> None:
    run = grouprl.load_run(folder)
    steps = run.metrics("train")
    assert isinstance(steps, pd.DataFrame)
    assert steps["step"].tolist() == [1, 2]
    assert set(run.metrics()["phase"]) == {"train", "eval"}
    rows = run.rollouts()
    assert len(rows) == 2 * 4
    assert len(run.rollouts(2)) == 4
    assert run.summary["finished"] is True
    assert run.config.steps == 2
    with pytest.raises(grouprl.InputError, match=r"step 9.*1 to 2"):
        run.rollouts(9)


def test_without_pandas_tables_are_arrows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_run, "find_spec", lambda name: None)
    assert isinstance(grouprl.load_run(folder).metrics(), pa.Table)


def test_a_notebook_shows_the_page_in_a_frame(folder: Path) -> None:
    shown = grouprl.load_run(folder)._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "<script" not in shown  # it is escaped, so only the frame runs it
    assert 'sandbox="allow-scripts"' in shown


def test_curves_show_themselves_with_the_words_of_the_glossary(folder: Path) -> None:
    curves = grouprl.load_run(folder).curves("reward_mean", "entropy")
    assert repr(curves) == "ShownCurves(reward_mean, entropy)"
    assert list(curves.figures) == ["reward_mean", "entropy"]
    assert all("<svg" in figure and "Look for" in figure for figure in curves.figures.values())
    assert curves._repr_html_().startswith("<iframe srcdoc=")
    with pytest.raises(grouprl.InputError, match=r"no values of 'entropi'.*entropy"):
        grouprl.load_run(folder).curves("entropi")
    with pytest.raises(grouprl.InputError, match="A curve is of a metric"):
        grouprl.load_run(folder).curves()


def test_a_run_that_has_just_begun_has_no_records_yet(folder: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(folder / "config.yaml", begun)
    run = grouprl.load_run(begun)
    assert not run.finished
    assert len(run.metrics()) == 0
    with pytest.raises(grouprl.InputError, match=r"no values of .* There are none"):
        run.curves("reward_mean")


def test_wrong_curves_are_refused_in_words(folder: Path) -> None:
    run = grouprl.load_run(folder)
    with pytest.raises(grouprl.InputError, match=r"phase='trian'.*one of train, eval"):
        run.curves("reward_mean", phase="trian")
    with pytest.raises(grouprl.InputError, match="Name each by itself"):
        run.curves(["reward_mean"])
    with pytest.raises(grouprl.InputError, match="no values of 'phase'") as refused:
        run.curves("phase")
    assert "Did you mean 'phase'" not in str(refused.value)


def test_damaged_files_are_named(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "damaged"
    shutil.copytree(folder, place)
    for name in ("summary.json", "health.json", "rollouts/step-000002.parquet"):
        (place / name).write_bytes((place / name).read_bytes()[:1])
    run = grouprl.load_run(place)
    for look, name in ((lambda: run.summary, "summary"), (lambda: run.findings, "health"), (run.rollouts, "step-0+2")):
        with pytest.raises(grouprl.InputError, match=f"{name}.* cannot be read"):
            look()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(grouprl.InputError, match="not a run folder"):
        grouprl.load_run(tmp_path)


def test_an_evaluation_is_that_of_the_record(folder: Path) -> None:
    last = grouprl.load_run(folder).metrics("eval").iloc[-1]
    found = grouprl.evaluate(folder)
    assert found.reward.value == pytest.approx(last["eval/reward"])
    assert grouprl.evaluate(folder, prompts=2, greedy=True).samples_per_prompt == 0


def test_a_plan_is_called_like_a_run() -> None:
    found = grouprl.plan(SMALL, ["steps=7"])
    assert isinstance(found, Plan)
    assert found.batch.steps == 7
    assert "| advantage | `relative` |" in found._repr_markdown_()
    assert grouprl.plan.plan is not None  # it is the package, too


@pytest.mark.parametrize("text", ["{name: addition", "{name: &x {of: *x}}", "{" * 5000])
def test_a_task_in_braces_that_is_no_finite_yaml_is_refused(text):
    with pytest.raises(InputError, match="--task"):
        task_spec(text)
