"""Eight ranks of which one is slow in every pass, or lost: the others wait for it, or say which one it was."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

import rank_runs
from grouprl.policy.sharded.ranks import Ranks

RANKS = 8


def test_one_of_eight_is_slow_and_one_is_lost(tmp_path: Path) -> None:
    config = rank_runs.write_config(tmp_path, batch={"prompts": 8, "group_size": 4, "minibatches": 1})
    rank_runs.train_on(RANKS, config, tmp_path / "whole", "-q")
    whole = rank_runs.evidence(tmp_path / "whole")
    codes, said = rank_runs.on_ranks(RANKS, config, tmp_path / "slow", "-q", fault="5 passes 3 slow")
    assert codes == [0] * RANKS, said
    assert rank_runs.evidence(tmp_path / "slow") == whole, "byte for byte"
    codes, said = rank_runs.on_ranks(RANKS, config, tmp_path / "lost", "-q", fault="6 passes 6 kill")
    assert (codes[0], codes[6]) == (3, -9), said
    assert None not in codes
    named = re.search(r"(?:one of ranks|rank) ([\d, ]+) of 8 is gone", said)
    assert named is not None, said
    assert {"6"} <= set(named[1].split(", ")) < set("1234567"), "those that miss it themselves are not named"
    rank_runs.train_on(RANKS, config, tmp_path / "lost", "--resume", "-q")
    assert rank_runs.evidence(tmp_path / "lost") == whole, "byte for byte"


def test_a_rank_that_misses_another_one_is_not_the_missing_one() -> None:
    station: Any = SimpleNamespace(count=5)
    store = dist.HashStore()
    ranks = Ranks(store, station)
    assert ranks._missing() == "one of ranks 1, 2, 3, 4 of 5"
    store.set("done/2", "0")
    store.set("misses/3", "another rank")
    assert ranks._missing() == "one of ranks 1, 4 of 5"
    store.set("misses/4", "another rank")
    assert ranks._missing() == "rank 1 of 5"
    store.set("misses/1", "another rank")
    assert ranks._missing() == "one of ranks 1, 3, 4 of 5", "one that is cut off says so, too"
    for rank in (1, 3, 4):
        store.set(f"done/{rank}", "0")
    assert ranks._missing() == "one of the other ranks"
