"""A run under faults from inside and outside ends with all its steps, flat memory and an account that closes.

Scaled down; `make soak` runs for half an hour (recorded in docs/durability.md).
"""

from __future__ import annotations

from pathlib import Path

import pytest

import soak


@pytest.mark.parametrize("kind", ["answers", "episodes"])
def test_a_run_survives_its_faults(kind: str, tmp_path: Path) -> None:
    found = soak.soak(tmp_path, kind, 60, every=10, calm=0.3)
    assert found.faults.total() >= 3
    assert found.starts >= 3
    assert found.account["prompts_trained"] > 0
    reasons = {name for name in found.account if name.startswith("rows_lost/")}
    inside = {"error"} if kind == "episodes" else {"error", "bad_value", "group"}
    assert inside <= {name.removeprefix("rows_lost/") for name in reasons}
    assert found.growth_mb < 30


def test_growing_memory_is_noticed() -> None:
    flat = [(step, 300.0 + step % 3) for step in range(80)]
    leaking = [(step, 300.0 + step) for step in range(80)]
    assert abs(soak.Soaked(80, memory=flat).growth_mb) <= 1
    assert soak.Soaked(80, memory=leaking).growth_mb == pytest.approx(30, abs=2)
