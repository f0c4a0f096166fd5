"""Several ranks take the optimiser step of one process: guarantee 1 of split-invariance, on ranks."""

from __future__ import annotations

import json
from pathlib import Path

from ranks import run_on_ranks

SCRIPTS = Path(__file__).parents[1] / "support"
METHODS = ("grpo", "dapo", "dr_grpo", "grpo@nemo_rl", "intellect2", "ppo", "clip_cov")
"""Sequence mean, token mean, constant, KL, entropy bonus, value head, and an objective that sees all rows at once."""


def test_a_step_is_the_same_on_two_ranks_as_on_one() -> None:
    found = json.loads(run_on_ranks(SCRIPTS / "rank_steps.py", 2, *METHODS).splitlines()[-1])
    assert found["ranks"] == 2
    assert set(found["found"]) == set(METHODS)
    for name, apart in found["found"].items():
        assert apart["moved"] > 1e-3, name
        for what in ("weights", "metrics", "logp"):
            assert apart[what] < 1e-12, (name, what, apart)
        assert apart["whole"] < 1e-6, "the copies that are sampled from, through the lean engine"
        assert apart["update_ratio"] < 1e-8
