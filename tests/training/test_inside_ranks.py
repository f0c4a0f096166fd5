"""Methods that look inside the policy on ranks: killed, then resumed on as many and on other numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import rank_catalogue
import rank_runs

KILLED = {"nash_md": "1 sampling 9 kill", "vapo": "1 sampling 4 kill", "harpg": "1 passes 8 kill"}
"""While a mixture with the reference is sampled, while a value head is fitted, between two gradients of a step."""
CHANGED: dict[str, dict[str, Any]] = {"vapo": {"method": {"name": "vapo", "value_pretraining": 3}}}


def config_of(name: str, home: Path) -> Path:
    """The configuration of three steps of an entry, each with its checkpoint, that a fault can end."""
    path = rank_catalogue.write_config(name, home)
    config = yaml.safe_load(path.read_text()) | CHANGED.get(name, {})
    config["run"] |= {"checkpoint_every": 1, "rank_timeout": 60}
    config["plugins"] = [rank_runs.KILLER]
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_rank_changes_no_byte_and_other_numbers_of_ranks_continue(name: str, tmp_path: Path) -> None:
    config = config_of(name, tmp_path / "own")
    whole, run = tmp_path / "whole", tmp_path / "run"
    rank_runs.train_on(2, config, whole, "-q")
    codes, said = rank_runs.on_ranks(2, config, run, "-q", fault=KILLED[name])
    assert codes[0] == 3, said
    rank_runs.train_on(2, config, run, "--resume", "-q")
    assert rank_runs.evidence(run) == rank_runs.evidence(whole), "byte for byte"
    for first, then in ((2, 1), (1, 3)):
        moved = tmp_path / f"{first}-{then}"
        codes, said = rank_runs.on_ranks(first, config, moved, "-q", fault="0 metrics 2 int")
        assert codes[0] == 130, said
        rank_runs.train_on(then, config, moved, "--resume", "-q")
        assert rank_catalogue.differing(whole, moved) == {}
        assert rank_runs.apart(whole, moved)["weights"] < 1e-9
