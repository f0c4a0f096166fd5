"""Records of scripts: the rate is chosen on a seed that is not recorded, and rows stand in for those before them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from page_record import tuned


@pytest.mark.parametrize(("best", "chosen"), [(max, 0.3), (min, 0.1)])
def test_a_rate_is_chosen_on_a_seed_of_its_own(tmp_path: Path, best: Callable[..., float], chosen: float) -> None:
    calls = []

    def run(seed: int, lr: float) -> dict[str, Any]:
        calls.append((seed, lr))
        return {"earned": 10 * lr + seed}

    for _ in range(2):
        calls.clear()
        tuned(tmp_path / "r.json", "ours", run, lambda row: float(row["earned"]), (0.1, 0.3, 0.2), 9, [0, 1], best)
    assert calls == [(9, 0.1), (9, 0.3), (9, 0.2), (0, chosen), (1, chosen)]
    rows = json.loads((tmp_path / "r.json").read_text())
    assert [(row["arm"], row["seed"], row["lr"]) for row in rows] == [("ours", 0, chosen), ("ours", 1, chosen)]
    assert rows[0]["tried"] == pytest.approx({"0.1": 10.0, "0.3": 12.0, "0.2": 11.0})
    assert rows[1]["earned"] == pytest.approx(10 * chosen + 1)
