"""A comparison over stored trajectories that is killed in the middle of a run, and continued by the same command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grouprl.core.errors import RunError
from grouprl.experiments.arms import arms_of, methods_of
from grouprl.experiments.budget import Budget, spent
from grouprl.experiments.compare import run_comparison, source_of
from grouprl.experiments.design import Comparison
from grouprl.experiments.result import ComparisonResult
from grouprl.experiments.schedule import RunProcess, Store
from grouprl.experiments.trial_main import RUN, make_run
from grouprl.experiments.writing import curves_csv
from grouprl.processes.child_process import LoggedProcess
from grouprl.storage.run_folder import RunFolder
from grouprl.training import loop
from killed_trials import KILLED_AT, main

EVERY = 2
"""Steps between checkpoints: the step after which a run is killed is in none."""
NAMES = ("whole", "cut")


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not read each final model in one more process, which takes most of the time of so short a run."""
    monkeypatch.setattr(loop, "check_final_model", lambda *given: None)


class HereProcess:
    """A run that is made at once, in this process."""

    returncode = 0

    def __init__(self, folder: Path) -> None:
        make_run(folder)

    def poll(self) -> int:
        return 0

    def wait(self, timeout: float) -> int:
        return 0

    def last_output(self, most: int) -> str:
        return ""

    def send_signal(self, number: int) -> None:
        pass

    def end(self) -> None:
        pass


def killed(folder: Path) -> RunProcess:
    """Kill the first seed of the weighted arm in the middle; make every other run as usual."""
    return LoggedProcess(main, folder) if "weighted_bc-s0" in folder.name else HereProcess(folder)


def walks(path: Path) -> Path:
    """Store 24 episodes of a pole that nobody balances."""
    rng = np.random.default_rng(0)
    episodes = [
        {
            "observations": rng.normal(size=(length + 1, 4)).tolist(),
            "actions": rng.integers(2, size=length).tolist(),
            "rewards": [1.0] * length,
            "terminated": True,
        }
        for length in rng.integers(3, 9, size=24).tolist()
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in episodes), encoding="utf-8")
    return path


def compared(folder: Path, budget: Budget, start: Callable[[Path], RunProcess], steps: int = 10) -> ComparisonResult:
    data = folder.parent / "walks.jsonl"
    data.exists() or walks(data)
    source = {
        "task": {"name": f"trajectories:{data}", "of": "control:CartPole-v1"},
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "method": "weighted_bc",
        "steps": steps,
        "batch": {"prompts": 8, "group_size": 1},
        "optim": {"lr": 1e-2, "schedule": "constant"},
        "eval": {"every": 4, "prompts": 4, "final_prompts": 4},
        "run": {"checkpoint_every": EVERY},
    }
    arms = tuple(arms_of(methods_of("sft,weighted_bc"), {}))
    what = Comparison((source_of(source),), arms, seeds=2, budget=budget, tune={})
    return run_comparison(what, Store(folder, 1, start), lambda *_: None, lambda _: None)


def killed_once(folder: Path, budget: Budget, steps: int = 10) -> ComparisonResult:
    """Kill a comparison in a run, look at what is left of it, and continue it."""
    with pytest.raises(RunError, match="weighted_bc"):
        compared(folder, budget, killed, steps)
    assert len(trained(folder)) == KILLED_AT > EVERY
    assert not (cut(folder) / "outcome.json").exists()
    return compared(folder, budget, HereProcess, steps)


def cut(folder: Path) -> Path:
    """Return the folder of the run that was killed."""
    return next(folder.glob("*weighted_bc-s0-*"))


def trained(folder: Path) -> list[dict[str, object]]:
    return [each for each in RunFolder(cut(folder) / RUN).read_metrics() if each["phase"] == "train"]


def without_seconds(result: ComparisonResult) -> ComparisonResult:
    runs = [replace(each, costs={k: v for k, v in each.costs.items() if k != "seconds"}) for each in result.runs]
    arms = [replace(each, costs={k: v for k, v in each.costs.items() if k != "seconds"}) for each in result.arms]
    return replace(result, runs=tuple(runs), arms=tuple(arms))


def test_a_comparison_over_stored_rows_that_is_killed_in_a_run_ends_as_one_that_is_not(tmp_path: Path) -> None:
    whole = compared(tmp_path / "whole", Budget("trained"), HereProcess)
    resumed = killed_once(tmp_path / "cut", Budget("trained"))
    assert without_seconds(resumed) == without_seconds(whole)
    assert curves_csv(resumed) == curves_csv(whole)
    whole_model, cut_model = (sorted((cut(tmp_path / name) / RUN / "model").rglob("*.safetensors")) for name in NAMES)
    assert [each.read_bytes() for each in whole_model] == [each.read_bytes() for each in cut_model] != []


def test_a_kill_gives_no_run_more_seconds_and_steps_that_are_made_again_count_once(tmp_path: Path) -> None:
    budget = Budget("seconds", 0.8)
    killed_once(tmp_path / "cut", budget, steps=2000)
    records = trained(tmp_path / "cut")
    assert [each["step"] for each in records] == list(range(1, len(records) + 1))
    assert len(records) > KILLED_AT
    assert spent("seconds", records[:-1]) < 0.8 <= spent("seconds", records)
