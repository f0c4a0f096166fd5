"""health.json: new findings at once, other words of the same ones now and then, and all of them in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grouprl.core.finding import RunFinding
from grouprl.monitor import run_record
from grouprl.monitor.run_record import HealthFile
from grouprl.storage.run_folder import RunFolder


class Told:
    """A health report that says what it is told to."""

    def __init__(self) -> None:
        self.said: list[RunFinding] = []

    def findings(self) -> list[RunFinding]:
        return self.said


def finding(code: str, words: str) -> RunFinding:
    return RunFinding(code=code, severity="note", key="", text=words, remedy="")


def test_words_are_written_now_and_then_and_findings_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, health, folder = [100.0], Told(), RunFolder(tmp_path)
    monkeypatch.setattr(run_record.time, "monotonic", lambda: clock[0])
    event: Any = None
    listener = HealthFile(folder, health)  # type: ignore[arg-type]

    def written() -> list[str]:
        return [row["text"] for row in json.loads(folder.health.read_text())]

    listener.begin(event)
    health.said = [finding("a", "one")]
    listener.step(event)
    assert written() == ["one"], "a finding that was not there"
    health.said = [finding("a", "two")]
    clock[0] += 0.5
    listener.step(event)
    assert written() == ["one"], "only its words changed, half a second later"
    clock[0] += 0.6
    listener.step(event)
    assert written() == ["two"], "a second is over"
    health.said = [finding("a", "three"), finding("b", "four")]
    listener.step(event)
    assert written() == ["three", "four"]
    for end in (listener.evaluation, listener.checkpoint, listener.phase_end, listener.end):
        health.said = [finding("a", f"before {end.__name__}"), finding("b", "four")]
        listener.step(event)
        assert written()[0] != f"before {end.__name__}"
        end(event)
        assert written()[0] == f"before {end.__name__}"
