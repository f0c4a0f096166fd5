"""A crowded machine is not the program's fault: its own time decides; who gets no processor is starved, not late."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from grouprl.chat.calls import Call
from grouprl.core.errors import InputError
from grouprl.rewards.by_task.code import passes_tests
from grouprl.rewards.clock import each_within
from grouprl.rewards.contract import Crowded
from grouprl.sandbox import LEVELS, Limits, ProgramOutcome, Sandbox, SandboxSettings
from grouprl.sandbox.box import _why
from grouprl.sandbox.cpu_wait import RunClock, Waited, Watch, open_processes
from grouprl.tools import Toolbox
from grouprl.tools.python import python

SECOND = Limits(seconds=1)
HERE = "import os, time\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
"""Begins a program that stands where the crowd is."""
WORKS = HERE + "while time.process_time() < 0.4: pass\nprint('done')"
counted = pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel does not count waiting")


@pytest.fixture
def crowd() -> Iterator[None]:
    """Four processes that want the first processor of this one all the time."""
    code = f"{HERE}print(flush=True)\nwhile True: pass"
    everybody = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)]
    try:
        for each in everybody:
            assert each.stdout is not None
            each.stdout.readline()
        yield
    finally:
        for each in everybody:
            each.kill()
            each.communicate()


@pytest.fixture(params=LEVELS)
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    try:
        made = Sandbox(level=request.param)
    except InputError as error:
        pytest.skip(str(error))
    with made:
        yield made


@counted
def test_what_a_program_waits_for_a_processor_is_not_its_time(box: Sandbox, crowd: None) -> None:
    """0.4 s of work on a fifth of a processor take up to 2 s, of a limit of 1 s."""
    outcome = box.run(WORKS, limits=SECOND)
    assert (outcome.why, outcome.stdout) == ("ok", "done\n")
    assert outcome.waited > 0.1  # how much the kernel lets it wait is the kernel's affair
    assert outcome.seconds - outcome.waited > 0.35
    assert 0.35 < outcome.cpu < 1.0


@counted
def test_sleeping_is_a_programs_own_time_and_so_is_standing_behind_others(box: Sandbox, crowd: None) -> None:
    idle = "try: os.nice(19)\nexcept PermissionError: pass\nelse:\n    while True: pass\ntime.sleep(9)"
    for code in ("time.sleep(9)", "r, w = os.pipe()\nos.read(r, 1)", idle):
        outcome = box.run(HERE + code, limits=SECOND)
        assert outcome.why == "timeout"
        assert outcome.seconds < 8  # it would sleep for 9


@counted
def test_who_never_gets_a_processor_is_starved_and_not_late(box: Sandbox, crowd: None) -> None:
    outcome = box.run(f"{HERE}while True: pass", limits=Limits(seconds=1, wall=1.05))
    assert outcome.why == "starved"
    assert outcome.seconds > 1.0


def test_processes_that_stand_in_each_others_way_are_owed_nothing() -> None:
    try:
        made = Sandbox(level="namespaces")
    except InputError as error:
        pytest.skip(str(error))
    code = f"{HERE}\nfor _ in range(3): os.fork()\nwhile True: pass"
    with made:
        outcome = made.run(code, limits=SECOND)
    assert outcome.why == "timeout"
    assert 0.9 < outcome.cpu < 3


def test_a_clock_counts_what_was_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("grouprl.sandbox.cpu_wait.time.monotonic", lambda: now)
    watch = Watch(None, 1)
    seen = Waited(3.0, 0.5)
    monkeypatch.setattr(watch, "all", lambda: seen)
    clock = RunClock(watch, {"seconds": 2.0, "wall": 8.0})
    assert (clock.next, clock.end) == (2.0, 8.0)
    now = 2.0
    assert (clock.over(), clock.next, clock.seen) == ("", 5.0, seen)
    now = 5.0
    assert clock.over() == "timeout"
    seen = Waited(7.0, 0.5)
    assert (clock.over(), clock.next) == ("", 8.0)
    now = 8.0
    assert clock.over() == "starved"
    seen = Waited(7.0, 2.0)
    assert clock.over() == "timeout"


def test_without_a_count_the_clock_on_the_wall_decides() -> None:
    watch = Watch(None, os.getpid())
    assert (watch.all(), watch.one(os.getpid())) == (Waited(), 0.0)
    processes = open_processes()
    assert processes is not None
    try:
        assert Watch(processes, os.getpid()).one(os.getpid()) >= 0
    finally:
        os.close(processes)


def test_the_wall_is_not_nearer_than_the_seconds() -> None:
    with pytest.raises(ValidationError, match="must be at least that"):
        Limits(seconds=3, wall=2)


ONE = [{"stdin": "", "stdout": "3"}]


def outcomes(monkeypatch: pytest.MonkeyPatch, *given: ProgramOutcome) -> None:
    left = iter(given)
    monkeypatch.setattr(SandboxSettings, "run", lambda self, code, **_: next(left))


def test_a_starved_program_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes(monkeypatch, ProgramOutcome("starved", seconds=20.0, waited=19.0))
    with pytest.raises(Crowded, match="less than its 5 s within 20 s"):
        passes_tests("print(3)", ONE)
    outcomes(monkeypatch, ProgramOutcome("timeout", seconds=5.0))
    assert passes_tests("print(3)", ONE)["correct"] == 0


def test_what_earlier_programs_waited_is_not_taken_from_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four programs of 3 s each, of which 2.9 s were waiting, within a reward of 10 s."""
    outcomes(monkeypatch, *[ProgramOutcome("ok", "3", seconds=3.0, waited=2.9)] * 4)

    def scored() -> Iterator[dict[str, float]]:
        yield passes_tests("print(3)", ONE * 4)

    assert next(each_within(10.0, scored()))["correct"] == 1
    outcomes(monkeypatch, *[ProgramOutcome("ok", "3", seconds=3.0)] * 4)
    assert next(each_within(10.0, scored()))["correct"] == 0


def test_the_machine_is_to_blame_where_the_clock_of_the_reward_cuts_a_program_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = []

    def run(self: SandboxSettings, code: str, **_: object) -> ProgramOutcome:
        seconds.append((self.seconds, self.wall))
        monkeypatch.setattr("grouprl.rewards.by_task.code.time.monotonic", lambda: now + 6.0)
        return ProgramOutcome("ok" if len(seconds) == 1 else "timeout", "3", seconds=6.0, waited=5.9)

    now = time.monotonic()
    monkeypatch.setattr(SandboxSettings, "run", run)

    def scored() -> Iterator[dict[str, float]]:
        yield passes_tests("print(3)", ONE * 2)

    with pytest.raises(Crowded):
        next(each_within(10.0, scored()))
    assert seconds[0] == pytest.approx((5.0, 9.0), abs=0.1)
    assert seconds[1] == (pytest.approx(3.0, abs=0.2), pytest.approx(3.0, abs=0.2))


@pytest.mark.parametrize("why", ["timeout", "starved"])
def test_a_tool_that_was_late_is_asked_again(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes(monkeypatch, ProgramOutcome(why), ProgramOutcome("ok", "3\n"))  # type: ignore[arg-type]
    box = Toolbox([python])
    call = Call("python", {"code": "1 + 2"})
    assert (box.call(call).status, box.call(call).text, box.call(call).text) == ("timeout", "3", "3")


@pytest.mark.parametrize(("stopped", "why"), [("timeout", "starved"), ("starved", "starved"), ("", "refused")])
def test_code_that_the_machine_did_not_start_in_time_is_not_refused(stopped, why):
    head = {"begun": False, "stopped": stopped, "returncode": None, "cpu": 0.0}
    assert _why(head, "", Limits()) == why
