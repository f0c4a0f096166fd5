"""How many workers `environment.workers: auto` starts: by cores, by memory and by the weight of what they start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from grouprl.config.run import parse_config
from grouprl.envs import environment_pool_choice as choice
from grouprl.envs.environment_pool_choice import MOST_WAITING, automatic
from grouprl.plan import remarks as module
from grouprl.plan.plan import plan
from grouprl.processes import usage
from grouprl.tasks import load_task

GB = 2**30
OWN = '''
import numpy as np
from grouprl.envs import Step
from grouprl.protocols import Box, Discrete, Spaces


class Heavy:
    """An environment that says how much it starts."""

    spaces, started_gb = Spaces(Box((1,)), Discrete(2)), 3

    def reset(self, example, seed):
        return np.zeros(1, np.float32)

    def step(self, action):
        return Step(np.zeros(1, np.float32), 1.0, terminated=True)

    def score(self):
        return {}

    def close(self):
        pass
'''


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(cores: int, free: float | None) -> None:
        for place in (choice, module, usage):
            monkeypatch.setattr(place, "core_count", lambda: cores)
            monkeypatch.setattr(place, "free_memory", lambda: None if free is None else int(free * GB))

    return made


def of(gb: float) -> Any:
    return SimpleNamespace(name="one", needs_clock=True, environment=lambda: None, started_gb=gb)


@pytest.mark.parametrize(
    ("cores", "free", "gb", "wanted"),
    [
        (2, 20, 0, (2, MOST_WAITING)),
        (64, 20, 0, (8, MOST_WAITING)),
        (2, 20, 0.5, (2, None)),  # two cores, however much memory there is
        (64, 20, 0.5, (8, None)),
        (64, 4, 1, (3, None)),  # three quarters of 4 GiB
        (64, 0.1, 1, (1, None)),  # never none
        (4, None, 1, (4, None)),  # the system does not say
    ],
)
def test_the_number_is_bounded(
    machine: Any, cores: int, free: float | None, gb: float, wanted: tuple[int, Any]
) -> None:
    machine(cores, free)
    assert automatic(of(gb)) == wanted


def test_a_browser_has_weight_and_other_tasks_have_none() -> None:
    assert load_task("browser").started_gb > 0
    assert load_task("guess").started_gb == 0


def test_an_environment_says_its_own_weight_and_the_plan_says_the_number(tmp_path: Any, machine: Any) -> None:
    (tmp_path / "own.py").write_text(OWN)
    machine(16, 8)
    task = {"name": f"env:{tmp_path / 'own.py'}:Heavy", "turns": 2}
    assert load_task(task).started_gb == 3
    small = {"batch": {"prompts": 1, "group_size": 2}, "eval": {"prompts": 2}}
    config = {
        "task": task,
        "model": {"name": "mlp", "settings": {"hidden": [2]}},
        "method": "grpo",
        "steps": 1,
        **small,
    }
    (said,) = (each.text for each in plan(parse_config(config)).findings if each.code == "workers")
    assert "starts 2 here: each starts a process of about 3 GiB" in said
    assert "16 cores and 8.0 GiB" in said
