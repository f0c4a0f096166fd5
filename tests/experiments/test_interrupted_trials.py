"""Processes of a comparison, and what becomes of them when it is interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grouprl.experiments.arms import arms_of, methods_of
from grouprl.experiments.budget import Budget
from grouprl.experiments.compare import source_of
from grouprl.experiments.design import start_trial, trial
from grouprl.experiments.schedule import Store


class Stubborn:
    """A run that neither ends nor stops; to look at it, or to wait for it, is interrupted."""

    returncode = None

    def __init__(self, waits: type[BaseException] | None) -> None:
        self.heard: list[int] = []
        self.ended = 0
        self.waits = waits

    def poll(self) -> int | None:
        raise KeyboardInterrupt

    def wait(self, timeout: float) -> int:
        if self.waits is not None:
            raise self.waits
        return 0

    def last_output(self, most: int) -> str:
        return ""

    def send_signal(self, number: int) -> None:
        self.heard.append(number)

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("waits", [None, KeyboardInterrupt])
def test_no_run_outlives_an_interruption_or_a_second_one(waits: type[BaseException] | None, tmp_path: Path) -> None:
    source = source_of("addition")
    begun = start_trial(source), tmp_path
    arm = arms_of(methods_of("grpo"), {})[0]
    trials = [trial(source, arm, seed, Budget("steps", 4), begun) for seed in (0, 1)]
    started: list[Any] = []

    def start(folder: Path) -> Any:
        started.append(Stubborn(waits))
        return started[-1]

    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path, 2, start).outcomes(trials, lambda *_: None)
    assert [each.ended for each in started] == [1, 1]
    assert all(len(each.heard) == 1 for each in started)
