"""What a plan knows of the components of a reward, before a run reads one that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grouprl.config.run import parse_config
from grouprl.plan.plan import plan

TINY = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 64}
SMALL: dict[str, Any] = {"model": {"name": "tiny", "tiny": TINY}, "steps": 1, "warmup": {"steps": 0}}
LIMITED = {"name": "constrained_grpo", "limit": 0.2}


def refused(**settings: Any) -> list[str]:
    return [str(each) for each in plan(parse_config({**SMALL, **settings})).refusals]


def test_a_component_that_the_reward_lacks_is_refused_by_name() -> None:
    (said,) = refused(task="addition", method=LIMITED)
    assert "reads the component '#cost'" in said
    assert "'addition' has no components" in said
    (said,) = refused(task="duels", method=LIMITED)
    assert "letter_0, letter_1, letter_2" in said


def test_a_component_that_it_has_is_not_and_neither_is_one_that_a_part_fills() -> None:
    assert not refused(task="duels", method={**LIMITED, "cost": "letter_0"})
    assert not any("component" in said for said in refused(task="addition", method="pppo"))


def test_a_reward_of_the_users_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def slow(completion):\n    return {'right': 1.0, 'length': float(len(completion))}\n")
    reward = {"function": "mine.py:slow", "workers": 0}
    assert not refused(task="addition", reward=reward, method={**LIMITED, "cost": "length"})
    (said,) = refused(task="addition", reward=reward, method=LIMITED)
    assert "has right, length" in said


def test_what_episodes_state_is_not_known_beforehand() -> None:
    model = {"name": "mlp", "settings": {"hidden": [4]}}
    assert not refused(task="env:grouprl.envs.construction.arms:Arms", model=model, method=LIMITED)
