"""A child starts bare and at once, finds what its parent finds, and ends with its parent and with its own children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grouprl.processes import child_process, run_with_parent
from grouprl.processes.child_process import ChildProcess, LoggedProcess, how_it_ended
from grouprl.processes.limits import die_with, limit_resources
from grouprl.processes.worker_process import WorkerProcess, WorkerSpec

MEMORY = 1 << 30


def tell(lifeline: str, *words: str) -> None:
    """What a child is and has."""
    die_with(int(lifeline))
    heavy = [name for name in ("torch", "numpy", "pydantic", "grouprl.core", "__mp_main__") if name in sys.modules]
    print(words, sys.argv[0], sys.modules["__main__"].__dict__.get("__file__"), heavy, os.getpid() == os.getsid(0))


def serve_limits(given: object, calls: object, reply: child_process.Callable[..., None]) -> None:
    """A worker that says what it may use, then ends."""
    import resource

    reply("limits", given, resource.getrlimit(resource.RLIMIT_DATA)[0], resource.getrlimit(resource.RLIMIT_CORE)[0])


def wait_with_child(lifeline: str) -> None:
    """A child whose own child ignores what can be ignored."""
    die_with(int(lifeline))
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    else:
        print(os.getpid(), child, flush=True)
    time.sleep(600)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for has."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def all_gone(pids: list[int], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not all(map(gone, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return all(map(gone, pids))


def test_a_child_is_bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not the library')")
    monkeypatch.chdir(tmp_path)  # which is last on the child's path, as it is not on this one's
    child = LoggedProcess(tell, "a b", 3)
    child.wait(60)
    assert child.last_output(1000) == f"('a b', '3') {__name__} None [] True"
    child.end()
    child.end()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_the_end_of_a_child_closes_its_log_although_the_child_is_still_held() -> None:
    before = open_files()
    child = LoggedProcess(tell, "a")
    child.wait(60)
    child.end()
    assert child.returncode == 0
    assert open_files() == before
    assert child.last_output(100) == "", "a watcher may ask at any time"


def test_a_child_that_cannot_be_started_leaves_no_file_open() -> None:
    before = open_files()
    with pytest.raises(ValueError, match="null byte") as met:
        LoggedProcess(tell, "\0")
    assert met.value.__traceback__ is not None  # which holds the child
    assert open_files() == before


def test_the_path_is_this_ones_with_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/a\udc80'b"])
    assert child_process.search_path() == [str(tmp_path), "/a\udc80'b"]
    monkeypatch.setattr(sys, "path", ["/c"])
    assert child_process.search_path() == ["/c", str(tmp_path)]


def test_a_worker_has_its_limits_before_it_serves() -> None:
    worker = WorkerProcess(WorkerSpec(serve_limits, "given", MEMORY))
    assert worker.next_reply(60, ["limits"]) == ["limits", "given", MEMORY, 0]
    assert worker.next_reply(60) is None
    assert worker.how_it_ended() == "ended by itself with exit code 0"
    worker.kill()


def test_memory_beyond_the_limit_is_an_error() -> None:
    program = f"import {limit_resources.__module__} as m\nm.limit_resources(1 << 28)\nbytearray(1 << 29)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "MemoryError" in said.stderr


def test_the_end_of_a_child_is_that_of_its_children() -> None:
    child = ChildProcess(wait_with_child, output=subprocess.PIPE)
    assert child.stdout is not None
    pids = [int(word) for word in child.stdout.readline().split()]
    child.end()
    assert child.returncode == -signal.SIGKILL
    assert all_gone(pids)


@pytest.mark.parametrize("main", ["test_child_process.wait_with_child", "run_with_parent.main"])
def test_whatever_hangs_ends_with_a_parent_that_is_killed(main: str) -> None:
    words = "[]" if "wait" in main else "['sh', '-c', 'sleep 600 & echo $$ $!; wait']"
    script = (
        "import time, subprocess, test_child_process\n"
        "from grouprl.processes import run_with_parent\n"
        "from grouprl.processes.child_process import ChildProcess\n"
        f"child = ChildProcess({main}, *{words}, output=None)\n"
        "time.sleep(600)\n"
    )
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert not any(map(gone, pids))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert all_gone(pids)


def test_a_child_whose_parent_ended_before_it_listened_does_nothing() -> None:
    lifeline, ours = os.pipe()
    os.close(ours)
    command = child_process.bare_command(run_with_parent.main, lifeline, "echo", "here")
    said = subprocess.run(command, pass_fds=[lifeline], capture_output=True, start_new_session=True, timeout=60)
    os.close(lifeline)
    assert (said.returncode, said.stdout, said.stderr) in [(0, b"", b""), (-signal.SIGKILL, b"", b"")]


def test_signals_that_were_blocked_and_ignored_are_heard() -> None:
    program = (
        "import os, signal\n"
        "from grouprl.processes.run_with_parent import hear_signals\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "hear_signals()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.pause()\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert found.returncode == -signal.SIGINT


def test_how_a_process_ended_is_told() -> None:
    assert how_it_ended(3) == "ended by itself with exit code 3"
    assert how_it_ended(-11) == "was ended by the signal SIGSEGV"
    assert "lack of memory" in how_it_ended(-9)
    assert how_it_ended(-(signal.SIGRTMIN + 1)) == f"was ended by the signal {signal.SIGRTMIN + 1}"


def test_what_cannot_be_started_leaves_no_files_open() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="Bad file descriptor"):
        ChildProcess(tell, output=10_000_000)
    assert os.listdir("/proc/self/fd") == before
