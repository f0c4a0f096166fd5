"""Signals at every moment: no traceback, the promised exit code, nothing half-written; `scripts/signals.py` tries
far more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import kills
import struck
from grouprl.cli.signals import ONE_STROKE, Listening
from grouprl.training.interrupt import Interrupt


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run `whole`."""
    home = tmp_path_factory.mktemp("struck")
    struck.prepare(home, "plain")
    outcome = struck.command(["train", "plain.yaml", "--folder", "whole"], home)
    assert outcome.code == 0, outcome.said
    return home


@pytest.mark.parametrize(
    ("point", "number", "kind"),
    [
        ("weights of a checkpoint", 2, "SIGINT"),
        ("final model", 1, "SIGINT thrice"),
    ],
)
def test_a_struck_training_goes_on_to_the_same_bytes(home: Path, point: str, number: int, kind: str) -> None:
    strike = struck.Strike(number, struck.KINDS[kind], point)
    outcome, faults = struck.tried(home, "plain", strike, kills.evidence(home / "whole"))
    assert faults == []
    assert outcome.code != 0


@pytest.mark.parametrize(("name", "kind"), [("export", "SIGTERM"), ("eval", "SIGINT twice")])
def test_a_struck_command_leaves_what_was_there(home: Path, name: str, kind: str) -> None:
    met = struck.command(struck.READERS[name], home, count=True).met
    outcome, faults = struck.tried_reader(home, name, struck.Strike(met // 2, struck.KINDS[kind]))
    assert faults == []
    assert outcome.code == (-signal.SIGTERM if kind == "SIGTERM" else 130)


def test_the_grace_period_ends_also_where_a_process_has_more_files_than_select_can_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grouprl.training.interrupt.GRACE", 0.2)
    with ExitStack() as opened:
        while (file := os.open(os.devnull, os.O_RDONLY)) < 1024:
            opened.callback(os.close, file)
        opened.callback(os.close, file)
        with pytest.raises(KeyboardInterrupt), Interrupt(lambda sentence: None):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)


AT_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)


struck, number = sys.argv[1], int(sys.argv[2])


class Striker:
    def find_spec(self, name, path=None, target=None):
        if name == struck:
            os.kill(os.getpid(), number)


sys.meta_path.insert(0, Striker())
sys.argv = ["grouprl", "recipes"]
from grouprl.cli import main
main()
"""


@pytest.mark.parametrize("module", ["grouprl.cli.signals", "grouprl.cli.app", "typer", "grouprl.cli.train"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_modules_are_loaded_ends_the_command_at_once(module: str, number: int) -> None:
    command = [sys.executable, "-c", AT_IMPORT, module, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    assert done.returncode == (130 if number == signal.SIGINT else -signal.SIGTERM), done.stderr


def test_the_command_listens_before_it_loads_anything() -> None:
    script = "import sys; before = set(sys.modules); import grouprl.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert {each for each in done.stdout.split() if each.startswith("grouprl")} == {"grouprl", "grouprl.cli"}
    assert "typing" not in done.stdout.split()


def test_two_signals_at_once_are_one() -> None:
    """`timeout` sends its signal to the process, and again to the group in which the process is."""
    said: list[str] = []
    with Interrupt(said.append) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
    assert len(said) == 1


def test_a_second_signal_is_the_callers_to_handle() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with pytest.raises(KeyboardInterrupt), Interrupt(lambda text: None):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(2 * ONE_STROKE)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_what_is_said_of_a_signal_is_not_said_inside_its_handler() -> None:
    """The handler may interrupt a write to the stream that it would write to."""
    where: list[threading.Thread] = []
    with Interrupt(lambda text: where.append(threading.current_thread())):
        os.kill(os.getpid(), signal.SIGINT)
    assert where != []
    assert threading.main_thread() not in where


class Slow:
    """Its destructor swallows an interruption."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(0.001)


def swallowed_once() -> None:
    """Have a destructor swallow an interruption, and see it come again."""
    before, hook = signal.signal(signal.SIGINT, signal.default_int_handler), sys.unraisablehook
    term = signal.getsignal(signal.SIGTERM)
    try:
        with Listening(130), pytest.raises(KeyboardInterrupt):
            thing = Slow()
            del thing
            threading.Event().wait(30)
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, term)
        sys.unraisablehook = hook


def test_one_that_comes_while_another_is_being_repeated_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    class Early(threading.Timer):
        """The first comes before the hook that starts it has returned, where an exception would be ignored."""

        def start(self) -> None:
            begun.append(self)
            if len(begun) == 1:
                signal.raise_signal(signal.SIGINT)
            else:
                super().start()

    monkeypatch.setattr(threading, "Timer", Early)
    swallowed_once()
    assert len(begun) == 2


def test_an_interruption_that_a_destructor_swallows_comes_again(capfd: pytest.CaptureFixture[str]) -> None:
    swallowed_once()
    assert "Exception ignored" not in capfd.readouterr().err
