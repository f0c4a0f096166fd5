"""A PettingZoo environment that a limit cuts off plays in a worker process as it does here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grouprl.config.run import parse_config
from grouprl.training.loop import train
from short_runs import quiet

pettingzoo = pytest.importorskip("pettingzoo")
ENVIRONMENT = """
import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Short(ParallelEnv):
    metadata = {"name": "short"}
    possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return Box(-9, 9, (2,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def seen(self):
        return {agent: np.full(2, self.round, np.float32) for agent in "ab"}

    def reset(self, seed=None, options=None):
        self.agents, self.round = ["a", "b"], 0
        return self.seen(), {}

    def step(self, actions):
        self.round += 1
        cut = self.round == 3
        self.agents = [] if cut else ["a", "b"]
        flags = dict.fromkeys("ab", False)
        return self.seen(), dict.fromkeys("ab", 1.0), flags, dict.fromkeys("ab", cut), {}
"""


@pytest.mark.parametrize("rounds", [2, 9])  # the task's limit, and the environment's
@pytest.mark.parametrize("workers", [0, 1])
def test_last_observations_come_from_where_it_plays(tmp_path: Path, rounds: int, workers: int) -> None:
    (tmp_path / "short.py").write_text(ENVIRONMENT)
    settings: dict[str, Any] = {
        "task": {"name": f"squad:{tmp_path}/short.py:Short", "rounds": rounds},
        "model": {"name": "mlp", "settings": {"hidden": [4]}},
        "method": "ippo",
        "steps": 1,
        "batch": {"prompts": 2, "group_size": 1},
        "eval": {"every": 0, "final_prompts": 1},
        "environment": {"workers": workers},
        "run": {"threads": 1},
    }
    train(parse_config(settings), folder=tmp_path / "run", console=quiet())
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    (step,) = [record for record in records if record["phase"] == "train"]
    assert step["reward_mean"] == min(rounds, 3)
