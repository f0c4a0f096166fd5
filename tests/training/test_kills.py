"""A run killed at an exact or random moment and resumed ends as if nothing had happened, to the bit.

A few methods and moments; `make kills` takes all methods and many more (recorded in docs/durability.md).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import kills


@pytest.mark.parametrize("name", ["dapo", "dvpo", "gigpo"])
def test_killed_runs_end_like_whole_ones(name: str, tmp_path: Path) -> None:
    config, arrivals, seconds = kills.run_whole(name, tmp_path)
    plan = kills.moments(arrivals, random.Random(name), 5, seconds)
    came, folders = kills.run_killed(config, tmp_path, plan)
    assert len(came) >= 4
    assert kills.differences(tmp_path, folders) == []


def test_every_point_is_met_by_some_run(tmp_path: Path) -> None:
    _, arrivals, _ = kills.run_whole("dvpo", tmp_path / "single")
    _, turns, _ = kills.run_whole("gigpo", tmp_path / "turns")
    met = {point for point, _ in arrivals + turns}
    assert set(kills.POINTS) - met == {"rewinding"}  # only a resumed run rewinds


def test_evidence_notices_a_single_bit(tmp_path: Path) -> None:
    kills.run_whole("ppo", tmp_path)
    before = kills.evidence(tmp_path / "whole")
    weights = next((tmp_path / "whole" / "checkpoints" / "step-000005").glob("policy.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert kills.difference(before, kills.evidence(tmp_path / "whole")) == [
        "checkpoints/step-000005/policy.safetensors"
    ]
