"""Clocks for the user's code: modules that hang while they are imported, constructors, alarms inside of alarms."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grouprl.core import timeout as clocks
from grouprl.core.errors import InputError
from grouprl.core.importing import import_object
from grouprl.core.plugins import load_file, load_module
from grouprl.core.timeout import CallClock, TooLong, alarm, seconds_to_import
from grouprl.tasks import load_task, registry

HANGS = "import time\n\nX = 1\ntime.sleep(100)\n"
STUBBORN = "import time\n\nfor _ in range(9):\n    try:\n        time.sleep(100)\n    except Exception:\n        pass\n"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(clocks.VARIABLE, "0.3")
    return tmp_path


@pytest.mark.parametrize("source", [HANGS, STUBBORN])
def test_a_module_that_hangs_while_it_is_imported_is_named_with_the_line(work: Path, source: str) -> None:
    (work / "hangs_here.py").write_text(source)
    for load in (
        lambda: import_object("hangs_here.py:f", "reward"),
        lambda: import_object("hangs_here:f", "reward"),
        lambda: load_file("hangs_here.py", "a rule"),
    ):
        begun = time.perf_counter()
        with pytest.raises(InputError, match=r"hangs_here.* after 0\.3 seconds, at .*hangs_here\.py:[45]\b") as said:
            load()
        assert time.perf_counter() - begun < 10
        assert clocks.VARIABLE in said.value.remedy
    assert "hangs_here" not in sys.modules


def test_a_plugin_by_name_that_hangs(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "hangs_there.py").write_text(HANGS)
    monkeypatch.syspath_prepend(work)
    with pytest.raises(InputError, match=r"'hangs_there' is still being imported"):
        load_module("hangs_there", "a rule")


def test_a_module_that_takes_its_time_is_left_alone(work: Path) -> None:
    (work / "slow_here.py").write_text("import time\ntime.sleep(0.1)\n\ndef f():\n    return 1\n")
    assert import_object("slow_here.py:f", "reward")() == 1
    time.sleep(0.3)  # nothing rings afterwards


@pytest.mark.parametrize("given", ["soon", "-1", "nan", "inf"])
def test_the_time_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(clocks.VARIABLE, given)
    with pytest.raises(InputError, match=given):
        seconds_to_import()
    monkeypatch.setenv(clocks.VARIABLE, "7.5")
    assert seconds_to_import() == 7.5


def test_of_two_alarms_the_earlier_one_rings() -> None:
    begun = time.perf_counter()
    with pytest.raises(TooLong), alarm(0.2), alarm(60):
        time.sleep(10)
    with pytest.raises(TooLong), alarm(60), alarm(0.2):
        time.sleep(10)
    assert time.perf_counter() - begun < 8
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_the_outer_alarm_goes_on_behind_an_inner_one() -> None:
    with pytest.raises(TooLong), alarm(0.4):
        with alarm(0.2):
            pass
        time.sleep(10)


def test_a_clock_ends_the_call_that_takes_too_long_and_no_other() -> None:
    clock, begun = CallClock(0.2), time.perf_counter()
    with clock.running():
        for _ in range(3):  # together they take longer than one may
            with clock:
                time.sleep(0.1)
        time.sleep(0.5)  # between two calls there is no limit
        with pytest.raises(TooLong), clock:
            time.sleep(10)
    assert time.perf_counter() - begun < 5
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_clock_goes_on_behind_an_alarm_and_leaves_one_around_it_alone() -> None:
    clock = CallClock(0.4)
    with clock.running():
        with alarm(0.05):
            pass
        with pytest.raises(TooLong), clock:
            time.sleep(10)
    with pytest.raises(TooLong), alarm(0.2), clock.running(), clock:
        time.sleep(10)


TASK = """
import time
from grouprl.tasks import Task


class Mine(Task):
    def __init__(self):
        {does}

    reward = example = size = None
"""


def test_a_task_whose_constructor_hangs(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "hangs_made.py").write_text(TASK.format(does="time.sleep(100)"))
    monkeypatch.setenv(clocks.VARIABLE, "60")
    monkeypatch.setattr(registry, "MAKING", 0.3)
    with pytest.raises(InputError, match=r"hangs_made\.py:Mine' was not made in time"):
        load_task("hangs_made.py:Mine")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (TASK.format(does="raise KeyError('x')"), r"cannot be made: KeyError: 'x' at .*\.py:8"),
        (TASK.format(does="pass").replace("example = ", ""), r"cannot be made: TypeError: .*abstract.*example"),
    ],
)
def test_a_task_that_cannot_be_made_is_named(work: Path, source: str, words: str) -> None:
    (work / "raises_made.py").write_text(source)
    with pytest.raises(InputError, match=words):
        load_task("raises_made.py:Mine")


def test_an_interrupt_ends_an_import_that_hangs(work: Path) -> None:
    (work / "hangs_long.py").write_text("print('importing', flush=True)\n" + HANGS)
    (work / "run.yaml").write_text("task: addition\nreward: {function: hangs_long.py:f}\n")
    plan = subprocess.Popen(
        [sys.executable, "-m", "grouprl", "plan", "run.yaml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, clocks.VARIABLE: "100"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert plan.stdout is not None
    assert plan.stdout.readline() == "importing\n"
    plan.send_signal(signal.SIGINT)
    _, said = plan.communicate(timeout=30)
    assert plan.returncode == 130
    assert "Traceback" not in said
