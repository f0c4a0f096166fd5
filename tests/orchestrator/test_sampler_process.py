"""The trainer says what became of a sampler that is no longer heard, and keeps nothing of it."""

from __future__ import annotations

import os
import time

import pytest

from grouprl import RunError
from grouprl.orchestrator.asynchronous import sampler_main, sampler_process
from grouprl.orchestrator.asynchronous.sampler_process import SamplerProcess
from grouprl.processes.limits import die_with


def close_and_stay(lifeline: str, wire: str) -> None:
    """Be a sampler that closes its connection, and is not gone for a long time."""
    die_with(int(lifeline))
    os.read(int(wire), 1)
    os.close(int(wire))
    time.sleep(600)


@pytest.fixture
def staying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_main, "main", close_and_stay)
    monkeypatch.setattr(sampler_process, "ENDING_SECONDS", 0.2)


@pytest.mark.usefixtures("staying")
def test_a_sampler_that_hangs_while_it_ends_is_reported_as_lost() -> None:
    sampler = SamplerProcess({}, 0)
    try:
        with pytest.raises(RunError, match="process closed its connection but did not end"):
            sampler.receive("nothing", print)
    finally:
        sampler.close()


@pytest.mark.usefixtures("staying")
def test_a_sampler_that_cannot_be_told_its_setup_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[SamplerProcess] = []
    close = SamplerProcess.close

    def noted(sampler: SamplerProcess) -> None:
        ended.append(sampler)
        close(sampler)

    monkeypatch.setattr(SamplerProcess, "close", noted)
    with pytest.raises(TypeError, match="pickle"):
        SamplerProcess({"never": os.scandir()}, 0)
    assert len(ended) == 1
    assert ended[0]._child.returncode is not None
