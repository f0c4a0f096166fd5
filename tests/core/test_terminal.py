"""What a model writes can only be read on a terminal; and how the command ends without memory."""

import io
import json
import os
import pickle
import subprocess
import sys
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from grouprl.cli import results
from grouprl.cli.app import RUN_FAILED, app
from grouprl.cli.results import put_data
from grouprl.core.errors import out_of_memory
from grouprl.core.terminal import CONTROL, Terminal, harmless
from grouprl.orchestrator.asynchronous import sampler_main as child
from grouprl.processes.child_process import bare_command
from grouprl.view.trajectory import Piece, Trajectory, TurnShown
from grouprl.view.trajectory_text import lines, table

ATTACKS = [
    "\x1b]0;owned\x07",
    "\x1b]52;c;b3duZWQ=\x07",
    "\x1b[2J\x1b[H",
    "\x9b31m",
    "\x9d0;owned\x9c",
    "\x1bP$qm\x1b\\",
    "\x1b]8;;http://owned\x1b\\click\x1b]8;;\x1b\\",
    "a\rb",
    "a\x08b",
    "\x0e\x0f\x05",
    "\u202eterces",
    "\u2066x\u2069",
    "\x7f\x00",
    "\ud800",
]


def printed(renderable, terminal):
    file = io.StringIO()
    Terminal(file=file, force_terminal=terminal, width=60, highlight=False).print(renderable)
    return file.getvalue()


@pytest.mark.parametrize("attack", ATTACKS, ids=ascii)
def test_no_text_reaches_a_terminal_as_a_command(attack):
    shown = [Text(attack), Text("x").append(attack, style="red")]
    grid = Table()
    grid.add_column(attack)
    grid.add_row(attack)
    for renderable in (*shown, grid):
        for terminal in (False, True):
            out = printed(renderable, terminal)
            out.encode()
            plain = out if not terminal else out.replace("\x1b[", "").replace("\x1b", "!")
            assert not CONTROL.search(plain), ascii(out)
            assert "]0;owned\x07" not in out
            assert "\x1b]" not in out


@given(st.text())
def test_harmless_text_keeps_its_length_and_all_that_is_harmless(text):
    found = harmless(text)
    assert len(found) == len(text)
    assert not CONTROL.search(found)
    assert all(a == b for a, b in zip(found, text, strict=True) if not CONTROL.match(b))
    assert harmless("äöü\t語\n🙂") == "äöü\t語\n🙂"


def test_colours_and_live_screens_still_work():
    file = io.StringIO()
    console = Terminal(file=file, force_terminal=True, width=40, color_system="standard")
    with Live(Text("live"), console=console, auto_refresh=False) as live:
        live.update(Text("red", style="red"), refresh=True)
    assert "\x1b[31mred" in file.getvalue()
    assert "\x1b[?25l" in file.getvalue()


@pytest.mark.parametrize("attack", ATTACKS, ids=ascii)
def test_a_shown_trajectory_holds_no_command(attack):
    piece = Piece(attack, True, 1.0)
    turn = TurnShown(0, attack, 0, attack, -1, attack, (piece,), 1.0, True, attack)
    row = {"row": 0, "agent": attack, "reward": None, "status": attack, "problem": attack, "ended": attack}
    trajectory = Trajectory(1, attack, 0, (turn,), (row,))
    for terminal in (False, True):
        for part in (*lines(trajectory, plain=not terminal), table([trajectory])):
            out = printed(part, terminal)
            assert "\x1b]" not in out
            assert "\x9b" not in out
            assert "\x07" not in out


def test_commands_print_through_it():
    """Rich's own console would print what it is given as it is."""
    folder = Path(sys.modules["grouprl"].__file__).parent
    found = [
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if "Console(" in path.read_text() and path.name != "terminal.py"
    ]
    assert set(found) <= {"cli/serve.py", "cli/papers.py"}  # they print no text of a model


NO_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
    OSError(12, "Cannot allocate memory"),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=repr)
def test_out_of_memory_ends_in_a_sentence(error, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("grouprl.training.loop.train", fail)
    assert out_of_memory(error)
    found = CliRunner().invoke(app, ["train", "addition", "--folder", "/nonexistent/run"])
    assert found.exit_code == RUN_FAILED
    assert "out of memory" in found.output
    assert "Traceback" not in found.output
    assert not out_of_memory(RuntimeError("shape mismatch"))
    assert not out_of_memory(OSError(2, "no such file"))


def test_a_sampler_ends_at_once_with_its_trainer():
    """The end of the trainer's side of the pipe ends it, while it still imports."""
    for alive in (True, False):
        wire, theirs = Pipe()
        lifeline, ours = os.pipe()
        if not alive:  # the trainer ended before the sampler listened
            os.close(ours)
        process = subprocess.Popen(
            bare_command(child.main, lifeline, theirs.fileno()),
            pass_fds=(theirs.fileno(), lifeline),
            start_new_session=True,
        )
        theirs.close()
        os.close(lifeline)
        wire.send_bytes(pickle.dumps({}))
        if alive:
            time.sleep(0.5)
            os.close(ours)
        began = time.monotonic()
        process.wait(60)
        assert time.monotonic() - began < 30
        wire.close()


@pytest.mark.parametrize("number", [0x9B, 0x90, 0x7F, 0x1B, 0x202E, 0x2066, 0x061C, 0x2028, 0xD800])
def test_results_as_json_hold_no_control_characters_and_say_the_same(number, capsys):
    value = {"text": f"a{chr(number)}b", chr(number): ["\u00e4\n\t", 1.5, None]}
    put_data(value, indent=2)
    printed = capsys.readouterr().out
    assert not CONTROL.search(printed)
    assert "\u00e4" in printed
    assert json.loads(printed) == value


def test_no_command_prints_json_past_it():
    folder = Path(results.__file__).parent
    past = [
        path.name for path in folder.glob("*.py") if "put(json" in path.read_text() or "print(json" in path.read_text()
    ]
    assert past == []
