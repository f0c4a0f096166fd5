"""Settings of every test: one thread (two collapse as soon as anything else uses a core), no network, the schedule."""

import gc
import json
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from schedule import commit_number, longest_first, read_durations, slow_ones, take, with_unmeasured, without_turn

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
NOT_OF_TESTS = ("PYTEST_", "RAY_")
"""How the names begin that pytest and Ray set as they are used."""
ALWAYS = 30.0
"""Seconds of slow tests that always run from which they are named at the end."""
SHOWN = 10
"""Tests that are named then."""


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """A test that leaves a changed environment fails itself, instead of the ones that come after it.

    Libraries that it is the first to import may set what they need.
    """
    before, imported = dict(os.environ), len(sys.modules)
    yield
    after = dict(os.environ)
    names = {name for name, _ in before.items() ^ after.items() if not name.startswith(NOT_OF_TESTS)}
    changed = {name for name in names if before.get(name) != after.get(name)}
    if not changed or len(sys.modules) > imported:
        return
    for name in changed:
        os.environ.pop(name, None)
        os.environ.update({name: before[name]} if name in before else {})
    raise AssertionError(f"the test left other values of {sorted(changed)} in the environment")


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """A test that leaves other handlers of signals fails itself, instead of ending the worker of the ones after it."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    changed = [number for number in numbers if signal.getsignal(number) != before[number]]
    for number in changed:
        signal.signal(number, before[number])
    assert changed == [], f"the test left other handlers of {[number.name for number in changed]}"


LOOP = "grouprl.training.loop"


def leave_unchecked(patch: pytest.MonkeyPatch) -> None:
    """Spare runs the fresh process in which a final model is checked, for some seconds each."""
    if LOOP in sys.modules:
        patch.setattr(f"{LOOP}.check_final_model", lambda policy, folder, task: None)


@pytest.fixture(scope="module", autouse=True)
def shared_models_unchecked() -> Iterator[None]:
    """Leave the models of runs unchecked that the tests of a module share."""
    with pytest.MonkeyPatch.context() as patch:
        leave_unchecked(patch)
        yield


@pytest.fixture(autouse=True)
def model_unchecked(own_environment: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the models of a test's runs unchecked, unless it asks for `checked_model`.

    It comes behind `own_environment`, so that what a test patches is undone before that looks.
    """
    if "checked_model" not in request.fixturenames:
        leave_unchecked(monkeypatch)
    elif LOOP in sys.modules:
        true = sys.modules["grouprl.training.saved_model"].check_final_model
        monkeypatch.setattr(f"{LOOP}.check_final_model", true)


@pytest.fixture
def checked_model() -> None:
    """Let runs of this test check their final model."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what a run takes and writes."""
    help = "which slow tests to run (default: all); in turn: those of this commit, every sixteenth commit the same"
    parser.addoption("--slow", choices=("all", "turn", "none"), default="all", help=help)
    parser.addoption("--record-durations", metavar="FILE", help="write the seconds of every slow test as JSON")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage, which thousands of new tests are not, and never look at them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests that are not this commit's, and begin with what takes longest."""
    slow = config.getoption("--slow")
    number = commit_number(config.rootpath) if slow == "turn" else 0
    durations = read_durations()
    left = take(items, slow, number, durations)
    longest_first(items, durations)
    if left:
        config.hook.pytest_deselected(items=left)


class Recorder:
    """Names the slow tests that have no turn yet at the end of a run, and writes how long tests took where asked to.

    Where not all tests ran, only what the record lacks is added to it.
    """

    def __init__(self, file: Path | None, whole: bool) -> None:
        self.file, self.whole, self.reports = file, whole, list[tuple[str, float]]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the seconds of a phase of a test."""
        self.reports.append((report.nodeid, report.duration))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the slow tests that always run."""
        found = without_turn(read_durations(), self.reports)
        if sum(found.values()) > ALWAYS and self.file is None:
            seconds = f"{sum(found.values()):.0f} seconds go to {len(found)} slow tests without a turn"
            terminalreporter.write_line(f"{seconds}: `make durations` gives them one.")
            for name, took in list(found.items())[:SHOWN]:
                terminalreporter.write_line(f"{took:6.1f}  {name}")

    def pytest_sessionfinish(self) -> None:
        """Write the slow ones."""
        if self.file is not None:
            found = slow_ones(self.reports) if self.whole else with_unmeasured(read_durations(), self.reports)
            self.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Record durations; workers report to the process that started them."""
    if not hasattr(config, "workerinput"):
        file = config.getoption("--record-durations")
        whole = config.getoption("--slow") == "all" and config.args_source is config.ArgsSource.TESTPATHS
        config.pluginmanager.register(Recorder(Path(file) if file else None, whole))
