"""The functions of the laboratory refuse what they cannot read before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import grouprl
from grouprl.core.errors import InputError
from grouprl.experiments.evaluating import _numbers_of
from viewed_runs import run_folder

DEFAULTS = {"k": (1, 8), "samples": 8}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"methods": {"base": "dapo"}}, "methods=.*It must be a list"),
        ({"methods": None}, "methods=None.*It must be a list"),
        ({"changes": "steps=3"}, "changes='steps=3'.*It must be a list"),
        ({"over": {"optim.lr": "1e-4"}}, "over=.*lists of different values"),
        ({"over": {"optim.lr": []}}, "over=.*lists of different values"),
        ({"over": ["optim.lr=1e-4"]}, "over=.*lists of different values"),
        ({"over": {"optim.lr": [1e-4, "0.0001"]}}, "over=.*repeated value"),
        ({"tune": True}, "tune=True.*lists of different values"),
        ({"tune": {"optim.lr": 1e-4}}, "tune=.*lists of different values"),
        ({"seeds": 2.5}, r"seeds=2\.5.*whole number"),
        ({"seeds": "3"}, "seeds='3'.*whole number"),
        ({"tune_seeds": 0}, "tune_seeds=0.*whole number"),
        ({"workers": -1}, "workers=-1.*whole number"),
    ],
)
def test_a_comparison_refuses_arguments_of_another_kind(given: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        grouprl.compare(**{"sources": "addition", "methods": ["grpo", "gspo"], "folder": tmp_path / "runs", **given})
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("k", [[], [0], [1.5], "8", 8, [True]])
def test_k_is_a_list_of_whole_numbers(k: object) -> None:
    with pytest.raises(InputError, match=r"k=.*list of whole numbers"):
        _numbers_of(DEFAULTS, {}, k, None)


@pytest.mark.parametrize("samples", [0, -1, 2.0, "4", True])
def test_samples_are_a_whole_number(samples: object) -> None:
    with pytest.raises(InputError, match=r"samples=.*whole number"):
        _numbers_of(DEFAULTS, {}, None, samples)


def test_numbers_that_fit_are_taken() -> None:
    assert _numbers_of(DEFAULTS, {}, (1, 4), None) == {"k": (1, 4), "samples": 4}
    assert _numbers_of(DEFAULTS, {}, None, 4) == {"k": (1,), "samples": 4}


@pytest.mark.parametrize("source", [None, 3, ["addition"]])
def test_a_plan_is_of_a_configuration(source: object) -> None:
    with pytest.raises(InputError, match=r"the configuration is .*mapping of keys"):
        grouprl.plan(source)


@pytest.mark.parametrize("path", [None, 3, ["a"]])
def test_a_run_is_named_by_its_folder(path: object) -> None:
    with pytest.raises(InputError, match="A run is named by its folder"):
        grouprl.load_run(path)


def test_a_phase_and_a_step_that_cannot_be_are_refused(tmp_path: Path) -> None:
    run_folder(tmp_path / "a")
    run = grouprl.load_run(tmp_path / "a")
    assert len(run.metrics("train"))
    assert not len(run.metrics("pretraining"))
    for phase in ("trian", "", 3):
        with pytest.raises(InputError, match=r"phase=.*train, eval, warmup, pretraining"):
            run.metrics(phase)
    for step in ("1", [1, 2], 1.5, True):
        with pytest.raises(InputError, match=r"step=.*whole number"):
            run.rollouts(step)
