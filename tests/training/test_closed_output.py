"""A closed output does not end a run, and a record without its steps says which are gone."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grouprl.config.run import parse_config
from grouprl.core.terminal import Terminal
from grouprl.monitor.display import Display
from grouprl.protocols.run_events import UserMessage
from grouprl.training.interrupt import Interrupt
from grouprl.training.loop import train
from grouprl.view.runfiles import read_run

TINY = {
    "task": "reverse",
    "model": {"tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}},
    "batch": {"prompts": 2, "group_size": 2},
    "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
    "run": {"threads": 1, "check_model": False, "checkpoint_every": 1},
    "steps": 2,
}


class Closing(io.StringIO):
    """An output that is closed after a few writes."""

    def __init__(self, left: int = 3) -> None:
        super().__init__()
        self.left = left

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise BrokenPipeError
        return super().write(text)


@pytest.mark.parametrize("left", [0, 8])
def test_a_run_continues_when_its_output_is_closed_and_says_so(tmp_path: Path, left: int) -> None:
    folder = tmp_path / "run"
    summary = train(parse_config(TINY), folder=folder, console=Terminal(file=Closing(left)))
    assert not summary.interrupted
    assert (folder / "summary.json").is_file()
    said = (folder / "notes.log").read_text(encoding="utf-8")
    assert "the output was closed" in said
    assert "held-out" in said


def test_an_open_output_leaves_no_notes(tmp_path: Path) -> None:
    train(parse_config(TINY), folder=tmp_path / "run", console=Terminal(file=io.StringIO()))
    assert not (tmp_path / "run" / "notes.log").exists()


def test_messages_after_the_loss_are_noted() -> None:
    notes: list[str] = []
    display = Display(Terminal(file=Closing()))
    display.keep_going(notes.append)
    for text in "abcdefg":
        display.message(UserMessage(text))
    assert "the output was closed" in notes[0]
    assert notes[-1] == "g"


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
def test_a_closed_terminal_ends_a_run_after_its_step() -> None:
    said: list[str] = []
    with Interrupt(said.append) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.3)
        assert stop.requested
    assert "The terminal is closed" in said[0]


def test_a_process_that_was_forked_meanwhile_does_not_hold_up_the_end() -> None:
    """It has all that was open, so that nothing is closed while it lives: gymnasium's AsyncVectorEnv forks some."""
    held, holding = os.pipe()
    with Interrupt(lambda text: None):
        if (child := os.fork()) == 0:
            os.close(holding)
            os.read(held, 1)
            os._exit(0)
    os.close(holding)
    assert os.waitpid(child, 0)[1] == 0


def test_nohup_is_left_alone() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt(lambda text: None) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.1)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_deleted_record_is_told_with_its_steps(tmp_path: Path) -> None:
    folder, out = tmp_path / "run", io.StringIO()
    train(parse_config(TINY), folder=folder, console=Terminal(quiet=True))
    (folder / "metrics.jsonl").unlink()
    train(parse_config(TINY), folder=folder, resume=True, changes=["steps=3"], console=Terminal(file=out, width=300))
    assert "the record and the report lack steps 1-2" in out.getvalue()
    assert "metrics.jsonl lacks steps 1-2" in read_run(folder).missing
    assert "lacks steps 1-2" in (folder / "report.html").read_text(encoding="utf-8")
