"""The numbers of a run by the names of their metrics, from which its curves are drawn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from grouprl.view.runfiles import Column, RunData


def test_the_columns_of_a_phase_hold_its_numbers_alone_at_their_steps() -> None:
    records: list[Any] = [
        {"phase": "train", "step": 1, "a": 1.0, "b": None, "note": "x"},
        {"phase": "eval", "step": 1, "a": 9.0},
        {"phase": ["damaged"], "step": 2, "a": 8.0},
        {"step": 2, "b": 2, "right": True},
        {"a": 3.0},
    ]
    run = RunData(Path(), records=records)
    assert run.of_phase("train") == [records[0], records[3], records[4]]
    assert run.of_phase("warmup") == []
    found = run.columns("train")
    assert list(found) == ["step", "a", "b"]
    assert found["a"] == Column([1.0, 2.0], [1.0, 3.0])
    assert found["b"] == Column([2.0], [2])
    assert run.columns("eval")["a"] == Column([1.0], [9.0])


def test_a_long_run_is_read_once_for_all_of_its_curves() -> None:
    class Counted(dict[str, object]):
        times = 0

        def items(self) -> Any:
            Counted.times += 1
            return super().items()

    run = RunData(Path(), records=[Counted(phase="train", step=n, a=n, b=n) for n in range(5)])
    assert [run.columns("train")[name].y[-1] for name in ("a", "b")] == [4, 4]
    assert Counted.times == 5


def test_a_report_loads_no_torch() -> None:
    said = "import sys, grouprl.view.report; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True).stdout == "False\n"
