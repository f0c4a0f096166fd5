"""A worker that hangs, ends or talks nonsense is given up in words, and replaced; nothing of it is left."""

from __future__ import annotations

import errno
import math
import os
import pickle
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from grouprl.core.errors import RunError
from grouprl.processes import single_worker
from grouprl.processes.fork_server import ForkServer, WorkerStarter, supported
from grouprl.processes.frames import BadReply, Replies
from grouprl.processes.parcel import pack, unpack
from grouprl.processes.single_worker import SingleWorker
from grouprl.processes.worker_process import WorkerProcess, WorkerSpec, end_workers, wait_for_any
from grouprl.processes.worker_slot import WorkerLoss, WorkerSlot, wait_for_slots

MEMORY = 2 << 30


def serve(given: str, calls: Iterator[Any], reply: Replies) -> None:
    """Answer calls as they ask for it."""
    if given == "broken":
        raise ImportError("no such thing")
    if given == "slow":
        time.sleep(600)
    reply("ready")
    for how, value in calls:
        if how == "say":
            reply("said", value, os.getpid())
        elif how == "print":
            print("x" * value, flush=True)
            os.write(1, b'["said", "forged"]\n')
            reply("said", value, os.getpid())
        elif how == "garbage":
            os.write(reply._target, b"[" * value + b"\n")
        elif how == "endless line":
            while True:
                os.write(reply._target, b"x" * 4096)
        elif how == "exit":
            os._exit(value)
        elif how == "hang":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            time.sleep(600)
        elif how == "fork":
            if os.fork() == 0:
                return  # comes back into the code of the worker
            os.wait()
            reply("said", value, os.getpid())


def prepare(given: str) -> None:
    """Nothing is to be imported."""


def worker_of(given: str = "") -> SingleWorker:
    return SingleWorker(WorkerSpec(serve, given, MEMORY), "tests")


@pytest.fixture
def worker() -> Iterator[SingleWorker]:
    with closing(worker_of()) as found:
        yield found


def ask(worker: SingleWorker, how: str, value: object = 0, seconds: float = 60.0) -> Any:
    return worker.ask(pickle.dumps((how, value)), seconds, ["said", value])


def test_a_worker_answers_again_and_again(worker: SingleWorker) -> None:
    first, second = ask(worker, "say", 1), ask(worker, "say", 2)
    assert first[:2] == ["said", 1]
    assert second == ["said", 2, first[2]]


@pytest.mark.parametrize(
    ("how", "value", "loss"),
    [
        ("exit", 7, WorkerLoss("ended", "ended by itself with exit code 7")),
        ("garbage", 1, WorkerLoss("wrong", "b'['")),
        ("garbage", 900_000, WorkerLoss("wrong", f"b'{'[' * 60}'")),
        ("endless line", 0, WorkerLoss("wrong", "a line of more than 1048576 bytes")),
    ],
)
def test_a_worker_that_fails_is_replaced(worker: SingleWorker, how: str, value: int, loss: WorkerLoss) -> None:
    before = ask(worker, "say")[2]
    found = ask(worker, how, value)
    assert found == loss
    assert ask(worker, "say")[2] != before


def test_a_worker_that_hangs_is_killed(worker: SingleWorker) -> None:
    before = ask(worker, "say")[2]
    assert ask(worker, "hang", seconds=0.2) == WorkerLoss("late")
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_what_a_worker_prints_is_no_reply(worker: SingleWorker) -> None:
    assert ask(worker, "print", 1_000_000)[1] == 1_000_000
    assert len(worker._held[0].printed) <= 4000


def test_a_fork_that_comes_back_does_not_answer(worker: SingleWorker) -> None:
    pid = ask(worker, "say")[2]
    assert ask(worker, "fork", 5)[2] == pid


def test_a_fork_of_this_process_has_a_worker_of_its_own(worker: SingleWorker) -> None:
    pid = ask(worker, "say")[2]
    with worker._lock:  # as another thread might, while this one forks
        child = os.fork()
        if child == 0:
            other = ask(worker, "say")[2]
            worker.close()
            os._exit(0 if other != pid else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ask(worker, "say")[2] == pid


def test_what_cannot_be_imported_is_told() -> None:
    with (
        closing(worker_of("broken")) as worker,
        pytest.raises(RunError, match=r"for tests did not start(?s:.)*no such"),
    ):
        ask(worker, "say")


def test_a_start_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_worker, "START_SECONDS", 0.3)
    with closing(worker_of("slow")) as worker, pytest.raises(RunError, match="it was not ready after"):
        ask(worker, "say")


def test_a_slot_tells_why_its_worker_is_given_up() -> None:
    slot = WorkerSlot(WorkerProcess(WorkerSpec(serve, "", MEMORY)))
    heard: list[Any] = []
    while not heard:
        wait_for_slots([slot])
        assert slot.attend(heard.append) is None
    assert heard == [["ready"]]
    slot.process.send(pickle.dumps(("hang", 0)))
    slot.deadline = time.monotonic() + 0.5
    while (loss := slot.attend(heard.append)) is None:
        wait_for_slots([slot])
    assert loss == WorkerLoss("late")
    assert "time.sleep" in slot.evidence() or "in serve" in slot.evidence(), "where it hangs"
    assert loss.at_start("x") == "it was not ready after 120 s"
    slot.process.kill()


@pytest.mark.parametrize("error", [BadReply("not that"), RunError("not that")])
def test_a_slot_does_not_hide_what_the_taker_raises(error: Exception) -> None:
    def refuse(reply: list[Any]) -> None:
        raise error

    slot = WorkerSlot(WorkerProcess(WorkerSpec(serve, "", MEMORY)), deadline=math.inf)
    wait_for_any([slot.process], 60)
    if isinstance(error, BadReply):
        assert slot.attend(refuse) == WorkerLoss("wrong", "not that")
    else:
        with pytest.raises(RunError, match="not that"):
            slot.attend(refuse)
    slot.process.kill()


def test_idle_workers_end_by_themselves_and_the_others_at_once() -> None:
    idle, busy = (WorkerProcess(WorkerSpec(serve, "", MEMORY)) for _ in range(2))
    assert idle.next_reply(60) == busy.next_reply(60) == ["ready"]
    busy.send(pickle.dumps(("hang", 0)))
    end_workers([(idle, True), (busy, False)])
    assert (idle.child.returncode, busy.child.returncode) == (0, -signal.SIGKILL)


@pytest.mark.skipif(not supported(), reason="this system cannot tell of the end of another's child")
def test_workers_are_copies_once_there_is_one_to_copy() -> None:
    with closing(WorkerStarter(WorkerSpec(serve, "", MEMORY), prepare)) as starter:
        while starter.prepare_copies() == "importing":
            time.sleep(0.02)
        assert starter.own is not None
        worker = starter.start()
        assert worker.next_reply(60) == ["ready"]
        with open(f"/proc/{worker.child.pid}/stat", "rb") as file:
            assert int(file.read().rpartition(b")")[2].split()[1]) == starter.own._child.pid
        worker.kill()
        assert worker.child.returncode == -signal.SIGKILL
        starter.stop_copying()
        assert starter.prepare_copies() == "useless"
        other = starter.start()
        assert other.next_reply(60) == ["ready"]
        other.kill()


def test_a_parcel_is_a_function_by_its_path() -> None:
    assert unpack(pack(prepare, "function")) is prepare


def test_a_worker_for_whose_pipes_there_are_too_few_descriptors_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made, pipe = [0], os.pipe

    def scarce() -> tuple[int, int]:
        made[0] += 1
        if made[0] == 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return pipe()

    server = ForkServer.__new__(ForkServer)
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "pipe", scarce)
    with pytest.raises(OSError, match="Too many open files"):
        server.begin(())
    assert os.listdir("/proc/self/fd") == before
