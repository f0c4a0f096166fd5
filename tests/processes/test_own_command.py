"""Runs from Python whose learners are processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import grouprl
from grouprl import InputError, RunError
from grouprl.cli import launch
from grouprl.policy.sharded import ranks
from grouprl.processes import own_command
from grouprl.processes.own_command import run_command
from grouprl.processes.roll_call import Facts
from grouprl.training import starting
from short_runs import SMALL, quiet

SEVERAL = {**SMALL, "cluster": {"learners": 2}}
PROGRAM = """
import sys, grouprl
run = grouprl.train({settings}, folder="run", **{options})
print("finished", run.finished)
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_learners_are_started_and_their_run_is_returned_and_continued(tmp_path: Path) -> None:
    run = grouprl.train(SEVERAL, folder=tmp_path / "run", console=quiet())
    assert run is not None
    assert run.finished
    alone = grouprl.train(SMALL, folder=tmp_path / "alone", console=quiet())
    assert alone is not None
    assert run.metrics("train")["reward_mean"].tolist() == alone.metrics("train")["reward_mean"].tolist()
    more = grouprl.train(run.folder, ["steps=3"], resume=True, console=quiet())
    assert more is not None
    assert more.summary["steps"] == 3


def test_objects_of_this_process_do_not_reach_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cluster.learners = 2 with callbacks.*torchrun"):
        grouprl.train(SEVERAL, folder=tmp_path / "run", callbacks=[grouprl.RunListener()], console=quiet())
    with pytest.raises(InputError, match="with an engine"):
        grouprl.train(SEVERAL, folder=tmp_path / "run", engine=lambda *_: None, console=quiet())  # type: ignore[arg-type,misc]
    assert not (tmp_path / "run").exists()


def test_an_error_of_theirs_is_one_here(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="ended with exit code 2; it has said why"):
        grouprl.train({**SEVERAL, "reward": {"function": "nowhere.py:f"}}, folder=tmp_path / "run", console=quiet())


@pytest.mark.parametrize(("code", "interrupted"), [(0, False), (130, True), (143, True), (-2, True), (-15, True)])
def test_an_interrupted_run_is_no_error(monkeypatch: pytest.MonkeyPatch, code: int, interrupted: bool) -> None:
    monkeypatch.setattr(own_command.run_with_parent, "main", exits)
    assert run_command([str(code)]) == interrupted
    with pytest.raises(RunError, match="exit code 7"):
        run_command(["7"])


def exits(lifeline: str, *command: str) -> None:
    """End with the code that is the last word, or by the signal of a negative one."""
    if (code := int(command[-1])) >= 0:
        sys.exit(code)
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def test_learners_that_are_interrupted_before_their_run_begins_interrupt_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "run_command", lambda words: True)
    with pytest.raises(KeyboardInterrupt):
        grouprl.train(SEVERAL, folder=tmp_path / "run", console=quiet())


def test_a_finished_run_is_not_what_interrupted_learners_have_made(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: addition\n")
    (tmp_path / "summary.json").write_text('{"finished": true}')
    with pytest.raises(KeyboardInterrupt):
        starting._left_by_learners(tmp_path, interrupted=True)
    assert starting._left_by_learners(tmp_path, interrupted=False).finished
    (tmp_path / "summary.json").write_text('{"finished": false}')
    assert not starting._left_by_learners(tmp_path, interrupted=True).finished


def test_ranks_end_with_one_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    first = subprocess.Popen(["sleep", "600"])
    answers = {0: lambda: first, 1: interrupt}
    monkeypatch.setattr(launch, "_start", lambda command, rank, *rest: answers[rank]())
    with pytest.raises(KeyboardInterrupt):
        launch.run_ranks(["none"], 2)
    assert first.poll() == -signal.SIGTERM


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_rank_that_a_signal_ends_before_it_listens_is_interrupted(number: int, code: int) -> None:
    # Set anew, since what ignores a signal, as a command in the background does, hands that down to its children.
    script = f"import os, signal; signal.signal({int(number)}, signal.SIG_DFL); os.kill(os.getpid(), {int(number)})"
    assert launch.run_ranks([sys.executable, "-c", script], 1) == code


def test_a_rank_ignores_signals_only_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    before, meanwhile = signal.getsignal(signal.SIGINT), []

    def follow(met: Callable[[], None], facts: Facts, within: float | None) -> None:
        meanwhile.append(signal.getsignal(signal.SIGINT))
        met()
        meanwhile.append(signal.getsignal(signal.SIGINT))

    monkeypatch.setattr(ranks, "follow", follow)
    starting.follow_leader(dict)
    assert meanwhile == [signal.SIG_DFL, signal.SIG_IGN], "before and after all ranks have met"
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_may_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_command.run_with_parent, "main", exits)
    thread = threading.Thread(target=run_command, args=(["0"],))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_an_interrupt_ends_them_in_order_with_a_checkpoint(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(settings={**SEVERAL, "steps": 500}, options={}))
    process = subprocess.Popen(
        [sys.executable, program.name], cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count('"train"') > 2):
        pass
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert said.endswith("finished False\n")
    assert list((tmp_path / "run" / "checkpoints").iterdir())
