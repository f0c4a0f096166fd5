"""Completions that two ranks leave unfinished and continue in later steps, in runs that are killed again and again."""

from __future__ import annotations

import random
import time
from pathlib import Path

import rank_runs

KILLS = 15
CHANGES = {
    "run": {"checkpoint_every": 1, "rank_timeout": 60, "async_steps": 2, "samplers": 0},
    "batch": {"prompts": 2, "group_size": 2},
    "sampling": {"max_new_tokens": 48},
    "warmup": {"steps": 2, "batch": 8},
    "steps": 12,
}


def test_runs_that_continue_completions_end_with_the_same_bytes_however_often_a_rank_is_killed(tmp_path: Path) -> None:
    config, dice = rank_runs.write_config(tmp_path, **CHANGES), random.Random(0)
    begun = time.monotonic()
    rank_runs.train_on(2, config, tmp_path / "whole", "-q")
    seconds, whole = time.monotonic() - begun, rank_runs.evidence(tmp_path / "whole")
    continued = [step["staleness_max"] for step in rank_runs.metrics(tmp_path / "whole") if step["phase"] == "train"]
    assert max(continued) == 2, "completions wait for later steps"
    kills = ended = 0
    while kills < KILLS or not ended:
        run = tmp_path / f"killed{ended}"
        more = ["--resume"] if (run / "config.yaml").is_file() else []
        blow = (dice.randrange(2), dice.uniform(0.2, 0.9) * seconds) if kills < KILLS else None
        codes, said = rank_runs.on_ranks(2, config, run, "-q", *more, killed=blow)
        if codes == [0, 0]:
            assert rank_runs.evidence(run) == whole, "byte for byte"
            ended += 1
        else:
            assert -9 in codes, (codes, said)
            kills += 1
