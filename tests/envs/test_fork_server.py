"""Further workers are copies of a process that has imported the task once, where it may be copied."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import forked_envs
from grouprl.envs.environment_pool_worker import prepare, serve
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.processes.fork_server import KILLED, ForkServer, supported
from grouprl.processes.parcel import pack
from grouprl.processes.worker_process import WorkerProcess, WorkerSpec
from grouprl.rewards.contract import Failure
from grouprl.tasks import Example

pytestmark = pytest.mark.skipif(not supported(), reason="this system cannot tell of the end of another's child")


def settled(server: ForkServer) -> str:
    """Its state once it has imported the task."""
    while server.state == "importing":
        time.sleep(0.02)
    return server.state


def spec(task: Any) -> WorkerSpec:
    return WorkerSpec(serve, (pack(task, "task"), 30.0), 4 << 30)


def server_of(task: Any) -> ForkServer:
    return ForkServer(spec(task), prepare, 120)


@pytest.fixture
def server() -> Iterator[ForkServer]:
    found = server_of(forked_envs.TellingTask())
    assert settled(found) == "ready"
    with closing(found):
        yield found


def begun(server: ForkServer) -> WorkerProcess:
    return WorkerProcess(spec(forked_envs.TellingTask()), server.begin)


def example(number: int, **columns: Any) -> Example:
    return Example(f"told/{number}", "?", {"letter": "a", "turns": 2, "seconds": 0.0, **columns})


def stage_of(task: Any, most: int = 6) -> WorkerStage:
    """A stage whose further workers are begun by its server."""
    stage = WorkerStage(task, 1, timeout=30, memory_gb=4, most=most)
    stage._starter.prepare_copies()
    settled(stage._starter.own)
    return stage


def told(stage: WorkerStage, numbers: range) -> list[list[int]]:
    """What each episode tells of its process: itself, its parent, its session, threads, a random number."""
    for number in numbers:  # each in a worker of its own
        stage._home[number] = stage._start(("told", number))
    found = stage.call("reset", [(number, (example(number), number)) for number in numbers])
    return [[int(word) for word in each.text.split()] for each in found]


def test_copies_are_workers_of_their_own() -> None:
    with closing(stage_of(forked_envs.TellingTask())) as stage:
        seen = told(stage, range(3))
        parent = stage._starter.own._child.pid
        assert {row[1] for row in seen} == {parent}
        assert len({row[0] for row in seen}) == 3
        assert all(row[0] == row[2] for row in seen), "each in a session of its own, to be ended with its children"
        assert {row[3] for row in seen} == {1}
        assert len({row[4] for row in seen}) == 3, "whoever ignores its seed does not draw the same in every copy"


@pytest.mark.parametrize(("columns", "words"), [({"exit": 3}, "exit code 3"), ({"signal": 11}, "SIGSEGV")])
def test_how_a_copy_ended_is_told(columns: dict[str, int], words: str) -> None:
    with closing(stage_of(forked_envs.TellingTask())) as stage:
        stage._home[0] = stage._start(("apart", 0))
        (found,) = stage.call("reset", [(0, (example(0, **columns), 0))])
        assert isinstance(found, Failure)
        assert words in found.what
        assert ("Fatal Python error" in found.trace) == ("signal" in columns), "its stack is what it printed last"


@pytest.mark.parametrize("task", [forked_envs.ThreadTask, forked_envs.ConnectedTask, forked_envs.RaisingTask])
def test_what_copies_would_share_is_not_copied(task: Any) -> None:
    with closing(server_of(task())) as server:
        assert settled(server) == "useless"
    with closing(stage_of(forked_envs.ConnectedTask())) as stage:
        (row,) = told(stage, range(1))
        assert row[1] == os.getpid(), "it was started as a script"


def test_copies_outlive_their_server(server: ForkServer) -> None:
    worker = begun(server)
    assert not worker.ended()
    os.kill(server._child.pid, signal.SIGKILL)
    server._child.wait()
    assert worker.child.poll() is None
    with pytest.raises(OSError, match=r"has ended|Broken pipe|reset"):
        begun(server)
    worker.kill()
    assert worker.child.returncode == KILLED


def test_where_the_server_is_gone_workers_are_started_as_scripts() -> None:
    with closing(stage_of(forked_envs.TellingTask())) as stage:
        os.kill(stage._starter.own._child.pid, signal.SIGKILL)
        assert told(stage, range(1))[0][1] == os.getpid()
        assert stage._starter.own.state == "useless"


def test_waiting_for_a_copy_has_an_end(server: ForkServer) -> None:
    worker = begun(server)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.child.wait(0.01)
    worker.hang_up()
    assert worker.child.wait(60) == 0, "an idle one ends by itself once it is hung up on"
    worker.kill()


def test_nothing_is_left_open_or_running(server: ForkServer) -> None:
    before = os.listdir("/proc/self/fd")
    workers = [begun(server) for _ in range(3)]
    pids = [worker.child.pid for worker in workers]
    for worker in workers:
        worker.kill()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert not any(map(alive, pids))


def test_copies_end_with_a_run_that_is_killed() -> None:
    script = (
        "import time, forked_envs, test_fork_server as t\n"
        "stage = t.stage_of(forked_envs.TellingTask())\n"
        "print(*[row[0] for row in t.told(stage, range(2))], stage._starter.own._child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    assert all(map(alive, pids))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False
