"""Environments that write into the arrays that pass between them and the run: rows keep what was seen and sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grouprl.config.run import parse_config
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.records.requests import RolloutRequest
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.kinds.row_kinds import open_rows

FILE = Path(__file__).parents[1] / "support" / "careless.py"


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("horizon", [None, 3])
def test_rows_keep_what_was_seen_and_sampled(horizon: int | None, real: bool) -> None:
    """Every action is paid its sum, so that the row's actions add up to its reward."""
    task = {"name": f"env:{FILE}:Careless", "turns": 5, "horizon": horizon, "config": {"real": real}}
    run = resolve(
        parse_config(
            {
                "task": task,
                "model": "mlp",
                "method": "ppo_control" if horizon else "dr_grpo",
                "batch": {"prompts": 1, "group_size": 1 if horizon else 2},
                "environment": {"workers": 0},
            }
        )
    )
    policy: Any = build_policy(run)
    errors = ErrorPolicy("raise")
    source = open_rows(run.config, run.task, policy, run.reward, 1, errors, kind=run.row_kind)
    found = source.rows([RolloutRequest(0, 0, run.task.example("train", 0), 1)])
    source.close()
    inputs: Any = found.rollout.inputs
    assert inputs.observation_bt[0, :, 0].tolist() == [0, 1, 2]
    assert inputs.action_bt[0].any()
    assert float(inputs.action_bt[0].double().sum()) == pytest.approx(float(found.scores.reward_b[0]), abs=1e-5)
