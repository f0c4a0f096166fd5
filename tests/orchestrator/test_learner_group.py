"""Learners as a group, on a host in this process: started, heard, lost together, started again; the head watched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from datetime import timedelta
from pathlib import Path

import pytest

from grouprl import InputError, RunError
from grouprl.core import network
from grouprl.orchestrator.on_ray import learner_group, learner_node, ray_host
from grouprl.orchestrator.on_ray.learner_group import (
    GroupEnd,
    GroupSettings,
    LearnerGroup,
    checkpoints,
    kept_alive,
    ranks_at,
    verdict,
)
from grouprl.orchestrator.on_ray.learner_node import LearnerHello, LearnerPlace, LearnerRoom
from grouprl.orchestrator.on_ray.worker_host import hello_of
from grouprl.policy.sharded import ranks as meeting
from grouprl.processes.liveness import PeerWatch, answers
from placed_runs import HostHere

TWO = GroupSettings(count=2, start_timeout=60.0, restarts=3)


@pytest.fixture
def stand_in(monkeypatch):
    """Processes of learners that train nothing."""
    monkeypatch.setattr(learner_node, "MODULE", "learner_stand_in")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.fixture
def group(monkeypatch, stand_in):
    """Makes a group of two whose processes do as their arguments say; what they wrote is in `said`."""
    monkeypatch.setattr(learner_group, "TOLD", 0.5)
    monkeypatch.setattr(learner_group, "POLL", 0.1)
    made: list[LearnerGroup] = []

    def make(lose: object = None, signals: deque[int] | None = None) -> LearnerGroup:
        said: list[tuple[int, bytes, bytes]] = []
        host = HostHere({"learner": hello_of(LearnerHello(60.0))}, lose)
        found = LearnerGroup(host, TWO, deque() if signals is None else signals, lambda *heard: said.append(heard))
        found.said = said
        made.append(found)
        return found

    yield make
    for each in made:
        each.end()


def heard(found: LearnerGroup, rank: int, stream: int) -> str:
    return b"".join(each[stream] for each in found.said if each[0] == rank).decode()


def test_a_group_ends_with_the_exit_code_of_rank_0_and_what_it_writes_is_heard(group):
    found = group()
    assert found.run(
        ["0:say=zero", "1:say=one", "0:environment=RANK,WORLD_SIZE,GROUPRL_LEARNER,OWN"], {"OWN": "x"}
    ) == (GroupEnd(0))
    assert heard(found, 0, 1) == "zero\n0,2,here,x\n"
    assert heard(found, 0, 2) == "zero\n"


@pytest.mark.parametrize(
    ("deeds", "why"),
    [
        (["0:wait=600", "1:die"], "learner 1 was lost (it was ended by signal 9)"),
        (["0:die", "1:wait=600"], "learner 0 was lost (it was ended by signal 9)"),
        (["1:die", "0:wait=0.3", "0:exit=3"], "learner 1 was lost (it was ended by signal 9)"),
        (["0:exit=3", "1:exit=1"], "learner 1 was lost (it ended with exit code 1)"),
        (["0:exit=3", "1:wait=600"], "learner 1 was lost (it hung)"),
    ],
)
def test_a_group_that_lost_a_learner_says_which(group, deeds, why):
    assert group().run(deeds, {}) == GroupEnd(None, why)


def test_a_learner_whose_actor_is_lost_is_named(group):
    assert (
        "learner 1 was lost (it was killed)"
        in group(lambda actor, call: "before" if actor.number == 1 and call.method == "poll" else "")
        .run(["0:wait=600", "1:wait=600"], {})
        .why
    )


def test_a_signal_is_passed_on_to_rank_0(group):
    signals: deque[int] = deque()
    threading.Timer(0.7, signals.append, (signal.SIGINT,)).start()
    assert group(None, signals).run(["0:wait=600", "1:wait=600"], {}) == GroupEnd(130)


def test_a_signal_before_the_start_ends_the_run_at_once(group):
    assert group(None, deque([signal.SIGTERM])).run(["0:wait=600"], {}) == GroupEnd(143)


@pytest.mark.parametrize(
    ("codes", "waited", "passed", "end"),
    [
        ({}, 0.0, set(), None),
        ({1: 0}, 99.0, set(), None),
        ({0: 2}, 0.0, set(), GroupEnd(2)),
        ({0: 130}, 0.0, {2}, GroupEnd(130)),
        ({0: -15}, 0.0, {15}, GroupEnd(143)),
        ({0: -15, 1: 0}, 0.0, set(), GroupEnd(None, "learner 0 was lost (it was ended by signal 15)")),
        ({0: 3}, 0.0, set(), None),
        ({0: 3, 1: 0}, 0.0, set(), GroupEnd(3)),
        ({1: 1}, 1.0, set(), None),
        ({1: 1}, 99.0, set(), GroupEnd(None, "learner 1 was lost (it ended with exit code 1)")),
    ],
)
def test_what_became_of_a_group(codes, waited, passed, end):
    assert verdict(codes, 2, waited, passed) == end


def test_ranks_meet_at_the_node_of_the_first():
    places = [LearnerPlace("a", "10.0.0.1", 5000), LearnerPlace("b", "10.0.0.2", 6), LearnerPlace("b", "10.0.0.2", 7)]
    told = list(ranks_at(places))
    assert {(each["MASTER_ADDR"], each["MASTER_PORT"], each["WORLD_SIZE"]) for each in told} == {
        ("10.0.0.1", "5000", "3")
    }
    assert [each["RANK"] for each in told] == ["0", "1", "2"]
    assert [each["LOCAL_WORLD_SIZE"] for each in told] == ["1", "2", "2"]


def written(folder: Path, step: int) -> None:
    path = folder / "checkpoints" / f"step-{step:06d}"
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")


def test_a_group_is_started_again_as_long_as_it_gets_on(tmp_path):
    ends = iter([GroupEnd(None, "learner 1 was lost (so)")] * 4 + [GroupEnd(0)])
    said: list[str] = []

    def attempt() -> GroupEnd:
        written(tmp_path, len(said))
        return next(ends)

    assert kept_alive(attempt, tmp_path, 1, said.append, deque()) == 0
    assert len(said) == 4
    assert "learner 1 was lost (so): the learners start again from the newest checkpoint" in said[0]


def test_a_group_that_does_not_get_on_is_given_up(tmp_path):
    said: list[str] = []
    with pytest.raises(RunError, match=r"was lost \(so\): 3 losses without a further checkpoint .*is 2.*--resume"):
        kept_alive(lambda: GroupEnd(None, "learner 1 was lost (so)"), tmp_path, 2, said.append, deque())
    assert len(said) == 2
    assert "from the start" in said[0]


def test_a_signal_between_two_starts_ends_the_run(tmp_path):
    assert kept_alive(lambda: GroupEnd(None, "lost"), tmp_path, 2, print, deque([signal.SIGINT])) == 130


def test_half_a_checkpoint_is_no_progress(tmp_path):
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    assert checkpoints(tmp_path) == frozenset()
    written(tmp_path, 2)
    assert checkpoints(tmp_path) == {"step-000002"}


def test_a_learner_that_nobody_asks_for_ends(stand_in):
    room = LearnerRoom(LearnerHello(lease=0.3))
    room.begin(["0:wait=600"], {"RANK": "0"})
    process = room._process
    assert process is not None
    assert process.wait(30) == -signal.SIGKILL


def test_a_learner_that_waited_for_others_to_be_placed_has_a_lease_all_the_same(stand_in):
    room = LearnerRoom(LearnerHello(lease=0.2))
    room.place()
    time.sleep(0.5)  # another node comes late
    room.begin(["0:wait=600"], {"RANK": "0"})
    assert room._process is not None
    assert room._process.wait(30) == -signal.SIGKILL


def test_a_learner_that_does_not_hear_a_signal_is_lost_and_the_signal_is_kept(group, monkeypatch):
    """The others would hear nothing while it is waited for, and end."""
    monkeypatch.setattr(learner_group, "LEASE", 0.4)
    signals: deque[int] = deque()
    found = group(None, signals)
    call = found._host.call
    silent: list[object] = []

    def deaf(actor: object, method: str, arguments: tuple[object, ...]) -> object:
        if method == "signal":
            silent.append(object())
            return silent[-1]
        return call(actor, method, arguments)

    ready = found._host.ready
    monkeypatch.setattr(found._host, "call", deaf)
    monkeypatch.setattr(found._host, "ready", lambda calls, s: [] if silent and calls == silent else ready(calls, s))
    threading.Timer(0.7, signals.append, (signal.SIGINT,)).start()
    assert found.run(["0:wait=600", "1:wait=600"], {}).why == "learner 0 was lost (it did not answer to signal 2)"
    assert list(signals) == [signal.SIGINT], "the run ends instead of beginning again"


def test_a_learner_ends_with_the_process_that_started_it(stand_in):
    program = (
        "import time\n"
        "from grouprl.orchestrator.on_ray import learner_node\n"
        "learner_node.MODULE = 'learner_stand_in'\n"
        "room = learner_node.LearnerRoom(learner_node.LearnerHello(600.0))\n"
        "print(room.begin(['0:wait=600'], {'RANK': '0'}), flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    end = time.monotonic() + 30
    while _alive(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _alive(child)


def test_a_learner_is_the_command_line(capfd):
    room = LearnerRoom(LearnerHello(lease=600.0))
    room.begin(["--version"], {"RANK": "0"})
    assert room._process is not None
    assert room._process.wait(60) == 0
    assert room.poll(0.0).out.startswith(b"grouprl ")


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(("placed", "kind"), [("", InputError), ("10.0.0.1:6379", RunError)])
def test_learners_that_do_not_meet_are_a_loss_and_no_bad_input(monkeypatch, placed, kind):
    def nobody(*given: object, **named: object) -> None:
        raise RuntimeError("nobody is there")

    monkeypatch.setenv("GROUPRL_LEARNER", placed)
    monkeypatch.setattr(meeting, "meeting_store", nobody)
    with pytest.raises(kind, match="the ranks did not meet: RuntimeError: nobody is there"):
        meeting.follow(lambda: None)


def test_rank_0_waits_for_nobody_longer_than_it_should(monkeypatch):
    monkeypatch.setattr(meeting.dist, "new_group", lambda backend, timeout: timeout)
    patience = timedelta(seconds=7)
    assert meeting._lines(0, patience) == (patience, patience)
    assert meeting._lines(1, patience) == (meeting.IDLE, patience)


# --------------------------------------------------------------------------------------------------- the head of Ray


def watched(replies: list[bool], **clocks: float) -> tuple[PeerWatch, list[str]]:
    """A watch whose head answers as listed, and then as it did last."""
    ended: list[str] = []
    left = iter(replies)
    last = [True]

    def reached(address: str) -> bool:
        last[0] = next(left, last[0])
        return last[0]

    patience = {"patience": 0.05, "grace": 60.0, "beat": 0.01} | clocks
    return PeerWatch("10.0.0.1:6379", "10.0.0.1:6379 is gone", reached=reached, ended=ended.append, **patience), ended


def test_a_head_that_is_silent_for_long_is_gone_in_words():
    watch, ended = watched([True, False])
    watch._thread.join(1)
    while not watch.gone:
        time.sleep(0.01)
    with pytest.raises(RunError, match=r"10\.0\.0\.1:6379 is gone"):
        watch.check()
    watch.close()
    watch._thread.join()
    assert not ended


def test_a_run_that_does_not_end_without_its_head_is_ended():
    watch, ended = watched([False], grace=0.0)
    watch._thread.join()
    assert ended == [watch.gone]


def test_a_head_that_is_started_again_in_time_is_not_gone():
    watch, ended = watched([False, False, True], patience=600.0)
    time.sleep(0.1)
    watch.check()
    watch.close()
    watch._thread.join()
    assert not ended


def test_a_run_is_told_what_to_do_without_its_head(monkeypatch):
    monkeypatch.setattr(ray_host, "PATIENCE", 0.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        watch = ray_host.watched_head(f"127.0.0.1:{taken.getsockname()[1]}")
        while not watch.gone:
            time.sleep(0.01)
    watch.close()
    assert "the head of Ray at 127.0.0.1:" in watch.gone
    assert "continue with --resume" in watch.gone


def test_a_rank_that_cannot_reach_rank_0_ends():
    program = "import grouprl.policy.sharded.ranks as r, time\nr.CUT_OFF = 0.1\nr.watched_leader()\ntime.sleep(600)\n"
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "1"}
    found = subprocess.run([sys.executable, "-c", program], env=os.environ | told, capture_output=True, text=True)
    assert found.returncode == 3
    assert "error: rank 0 at 127.0.0.1:1 cannot be reached for 0.1 s: rank 1 ends" in found.stderr


def test_nobody_answers_at_an_address_without_a_listener():
    assert not answers("127.0.0.1:1")


# --------------------------------------------------------------------------------------------- which way to the others


def test_gloo_is_told_the_interface_that_leads_to_rank_0(monkeypatch):
    monkeypatch.setenv(network.GLOO, "")  # so that whatever is chosen below is undone
    monkeypatch.delenv(network.GLOO)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    network.choose_interface()
    assert network.GLOO not in os.environ
    monkeypatch.setattr(network, "own_address_towards", lambda host: "10.0.0.7")
    monkeypatch.setattr(network, "interface_of", lambda address: "eth7" * (address == "10.0.0.7"))
    network.choose_interface()
    assert os.environ[network.GLOO] == "eth7"
    monkeypatch.setenv(network.GLOO, "chosen")
    network.choose_interface()
    assert os.environ[network.GLOO] == "chosen"


class RayElsewhere:
    """Stands in for Ray's module: it connects to the head's node, unless it is told another."""

    def __init__(self, nodes, head):
        self.found, self.head, self.calls, self.util = nodes, head, [], self

    def init(self, _node_ip_address="", **given):
        self.calls.append(_node_ip_address)

    def shutdown(self):
        self.calls.append("shutdown")

    def get_node_ip_address(self):
        return self.calls[-1] or self.head

    def nodes(self):
        return [{"NodeManagerAddress": each, "Alive": each != "127.0.0.9"} for each in self.found]


@pytest.mark.parametrize(
    ("nodes", "calls"),
    [
        (["127.0.0.1", "203.0.113.9"], [""]),
        (["203.0.113.9", "127.0.0.9", "127.0.0.1"], ["", "shutdown", "127.0.0.1"]),
        (["203.0.113.9", "127.0.0.9", "203.0.113.8"], [""]),
    ],
)
def test_a_process_connects_over_a_node_of_its_own_machine(monkeypatch, nodes, calls):
    """Ray takes any node whose process it sees, such as another container's."""
    ray = RayElsewhere(nodes, nodes[0])
    monkeypatch.setattr(ray_host, "imported_ray", lambda: ray)
    ray_host.connect("203.0.113.9:6379")
    assert ray.calls == calls


def test_own_addresses_are_those_that_can_be_listened_on():
    assert network.is_own("127.0.0.1")
    assert not any(map(network.is_own, ("203.0.113.9", "2001:db8::9", "no such host.invalid")))


def test_interfaces_are_found_by_their_address():
    assert network.interface_of("127.0.0.1") == "lo"
    assert network.interface_of("203.0.113.9") == ""
    assert network.own_address_towards("127.0.0.1") == "127.0.0.1"
    assert network.own_address_towards("no such host.invalid") == ""


def test_a_port_that_is_taken_is_named(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        where = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in where.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(InputError, match=rf"MASTER_PORT={port}\. Another process listens there"):
            meeting._meet({}, 30.0)
