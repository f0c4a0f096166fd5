"""Weights that are sent to servers of vLLM all at once: groups that are made, broken off and made anew, with gloo.

The servers are stand-ins in threads of this process, which join real process groups; vLLM itself is in tests/on_vllm.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.config.run import parse_config
from grouprl.config.sections import Vllm
from grouprl.core.errors import InputError, RunError
from grouprl.plan.plan import plan
from grouprl.records.tokens import Tokens
from grouprl.rollout.servers.http_client import Wire
from grouprl.rollout.vllm import broadcast
from grouprl.rollout.vllm.broadcast import parts_of, slow_one, trainer_address
from grouprl.rollout.vllm.engine import VllmEngine
from grouprl.rollout.vllm.exchange import way_of
from served_policies import REQUESTS, RUN, Stand, engines, moved, small_policy
from vllm_brain import Brain
from vllm_stand_in import StandIn, standing_in

Tiny = Any


@pytest.fixture
def policy() -> Tiny:
    return small_policy()


@pytest.fixture
def stand(policy: Tiny, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    """Weights are sent in several pieces."""
    monkeypatch.setattr(broadcast, "PART", 2048)
    vllm = {"start_timeout": 3.0, "weights": "broadcast", "timeout": 20.0}
    with engines(lambda **more: VllmEngine(policy, Vllm(**more)), lambda: StandIn(Brain(policy)), **vllm) as make:
        yield make


def check_samples(engine: VllmEngine, policy: Tiny, version: int) -> None:
    """Samples are those of the policy as it is, under the name `version`."""
    found = engine.sample(REQUESTS)
    logp_bt = policy.logp(Tokens.of([r.prompt for r in REQUESTS], found.actions))
    np.testing.assert_allclose(found.logp_bt, logp_bt.detach().numpy(), atol=1e-4)
    assert set(found.version_bt[found.version_bt >= 0].tolist()) == {version}


def calls(server: StandIn, path: str) -> int:
    return sum(each.partition("?")[0] == path for each, _ in server.got)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_weights_arrive_at_all_servers(count: int, policy: Tiny, stand: Any) -> None:
    engine, servers, _ = stand(count)
    for version in range(3):
        moved(policy, version)
        engine.publish(version, policy)
        check_samples(engine, policy, version)
    assert all(server.label == f"{engine.run}.2" and not server.paused for server in servers)
    assert all(calls(server, "/init_weight_transfer_engine") == 1 for server in servers), "one group for all versions"
    assert all(server.parts > 3 for server in servers), "it is sent in several pieces"


def test_a_server_that_dies_in_the_middle_is_done_without(policy: Tiny, stand: Any) -> None:
    engine, (first, second), said = stand(2)
    engine.publish(0, policy)

    def die(number: int) -> None:
        if number == 2:
            first.group.close()
            first.fault = lambda path, body, answer: (500, b'{"error": {"message": "EngineDeadError"}}')
            raise RuntimeError("it died")

    first.at_part = die
    moved(policy)
    engine.publish(1, policy)
    assert "EngineDeadError" in " ".join(said)
    assert [server.state for server in engine.fleet.servers][1] == "up"
    assert second.label == f"{engine.run}.1"
    assert first.label == f"{engine.run}.unfinished", "it samples nothing with half of the weights"
    assert first.paused
    check_samples(engine, policy, 1)


def test_a_silent_server_is_named_and_not_waited_for_again(
    policy: Tiny, stand: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "MARGIN", 1.0)
    engine, (first, _), said = stand(2, timeout=2.0)
    engine.publish(0, policy)
    over = threading.Event()
    first.at_part = lambda number: over.wait(60)
    moved(policy)
    engine.publish(1, policy)
    assert [server.state for server in engine.fleet.servers] == ["aside", "up"]
    assert any(f"{engine.fleet.servers[0].wire.address} is set aside" in sentence for sentence in said)
    assert calls(first, "/update_weights") == 2, "once for each version"
    check_samples(engine, policy, 1)
    over.set()


def test_who_does_not_join_the_group_is_named(policy: Tiny, stand: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "MARGIN", 1.0)
    engine, (first, _), said = stand(2, timeout=2.0)
    over = threading.Event()
    first.at_init_weight_transfer_engine = lambda body: over.wait(60)  # type: ignore[method-assign]
    engine.publish(0, policy)
    assert "did not join the group" in said[0]
    assert engine.fleet.servers[0].wire.address in said[0]
    assert [server.state for server in engine.fleet.servers] == ["aside", "up"]
    check_samples(engine, policy, 0)
    over.set()


def test_when_nobody_is_left_the_run_ends_in_words(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand()
    engine.publish(0, policy)

    def die(number: int) -> None:
        raise RuntimeError("no memory left")

    server.at_part = die
    with pytest.raises(RunError, match=r"no server of vLLM is left(.|\n)*no memory left"):
        engine.publish(1, policy)
    assert server.paused
    assert server.label == f"{engine.run}.unfinished"


def test_a_server_that_lost_its_weights_gets_them_by_itself(policy: Tiny, stand: Any) -> None:
    engine, (first, second), said = stand(2)
    engine.publish(3, policy)
    first.label = "default"
    check_samples(engine, policy, 3)
    engine.fleet.up()
    assert any("it gets them anew" in sentence for sentence in said)
    assert calls(second, "/update_weights") == 1, "the other one is left in peace"
    moved(policy)
    engine.publish(4, policy)
    assert {first.label, second.label} == {f"{engine.run}.4"}
    check_samples(engine, policy, 4)


def test_a_slow_server_is_named_once(policy: Tiny, stand: Any) -> None:
    engine, servers, said = stand(3)
    servers[1].says["loading"] = "30.0"
    engine.publish(0, policy)
    engine.publish(1, policy)
    address = engine.fleet.servers[1].wire.address
    assert said == [f"the server {address} takes 30.0 seconds to load weights, the others 0.1: they wait for it"]


def test_stale_weights_are_noticed(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand()
    engine.publish(0, policy)
    moved(policy)
    server.brain.load = lambda message: None
    with pytest.raises(RunError, match="did not take version 1 of the weights, twice"):
        engine.publish(1, policy)


# --------------------------------------------------------------------------------------------------- pure parts


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.integers(1, 400))
def test_parts_hold_every_tensor_once(sizes: list[int], limit: int) -> None:
    places, end = [], 0
    for number, size in enumerate(sizes):
        places.append((str(number), "uint8", [size], end, size))
        end += -(-size // 64) * 64
    parts = parts_of(places, limit)
    assert [place for part in parts for place in part] == places
    assert all(len(part) == 1 or part[-1][3] + part[-1][4] - part[0][3] <= limit for part in parts)
    spans = [(part[0][3], part[-1][3] + part[-1][4]) for part in parts]
    merged = [b[-1][3] + b[-1][4] - a[0][3] for a, b in pairwise(parts)]
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert all(len(b) > 1 or whole > limit for b, whole in zip(parts[1:], merged, strict=True)), "none is needless"


@pytest.mark.parametrize(
    ("seconds", "named"),
    [
        ({"a": 9.0}, None),
        ({"a": 0.1, "b": 4.0}, None),
        ({"a": 1.0, "b": 1.1, "c": 9.0}, "c"),
        ({"a": 60.0, "b": 70.0, "c": 100.0}, None),
        ({"a": 30.0, "b": 9.0}, "a"),
    ],
)
def test_the_one_that_others_wait_for_is_named(seconds: dict[str, float], named: str | None) -> None:
    found = slow_one(seconds)
    assert (found is None) == (named is None)
    assert named is None or f"the server {named} takes" in str(found)


def test_the_trainer_has_an_address_that_servers_reach() -> None:
    assert trainer_address(["http://127.0.0.1:8000", "http://localhost:8001"]) == "127.0.0.1"
    assert trainer_address(["http://[::1]:8000"]) == "::1"
    with pytest.raises(InputError, match=r"the server at http://no-such-host\.invalid:8000 cannot be reached"):
        trainer_address(["http://127.0.0.1:8000", "http://no-such-host.invalid:8000"])


# ----------------------------------------------------------------------------------------- ways, plan, settings


def test_a_server_that_cannot_open_memory_is_sent_its_weights() -> None:
    server = StandIn()
    with standing_in(server) as address:
        assert way_of(Wire(address), "auto") == "shared_memory"
        server.says["grouprl_reads"] = "[Errno 2] No such file or directory"
        assert way_of(Wire(address), "auto") == "broadcast"
        with pytest.raises(InputError, match="from memory: it cannot open this process's memory"):
            way_of(Wire(address), "shared_memory")
        server.says["grouprl_weights"] = "1"
        assert way_of(Wire(address), "auto") == "disk"
        with pytest.raises(InputError, match="by broadcast: its grouprl_weights is of version 1"):
            way_of(Wire(address), "broadcast")


def planned(**vllm: Any) -> Any:
    return plan(parse_config({**RUN, "sampling": {"engine": "vllm", "vllm": {"weights": "broadcast", **vllm}}}))


def test_a_plan_tries_the_way_back() -> None:
    server = StandIn()
    with standing_in(server) as address:
        found = planned(addresses=[address])
        assert not found.refusals
        assert any("over the network" in note for note in found.notes)
        server.says["grouprl_reaches"] = "[Errno 113] No route to host"
        assert any("does not reach this machine at 127.0.0.1" in each for each in planned(addresses=[address]).refusals)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            refused = planned(addresses=[address], master_port=port).refusals
            assert any("nothing can listen at" in each and "in use" in each for each in refused)
        refused = planned(addresses=[address], master_address="192.0.2.77").refusals
        assert any("nothing can listen at 192.0.2.77" in each for each in refused)


@pytest.mark.parametrize(
    ("vllm", "words"),
    [
        ({"addresses": ["http://a"], "weights": "disk", "master_port": 5}, "master_port has no effect"),
        ({"master_address": "10.0.0.1"}, "own servers get weights through memory"),
        ({"weights": "broadcast", "adapters": "loaded"}, "are read from a folder"),
    ],
)
def test_settings_that_contradict_each_other(vllm: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_config({**RUN, "sampling": {"engine": "vllm", "vllm": vllm}})


LEAVES = """
import threading, time
import torch
from grouprl.rollout.vllm.server_plugin.grouprl_group import BrokenOff, Meeting, gathered, joined, opened_store

def member(rank):
    return Meeting("a", rank, 2, "127.0.0.1", 60.0)

def silent():
    groups.append(joined(opened_store("127.0.0.1", store.port, 60.0, trainer=False), member(1)))

groups, store = [], opened_store("127.0.0.1", 0, 60.0, trainer=True)
threading.Thread(target=silent, daemon=True).start()
group, begun = gathered(store, member(0)), time.monotonic()
try:
    group.broadcast(torch.zeros(2**27, dtype=torch.uint8), lambda: time.monotonic() > begun + 0.5)
except BrokenOff:
    assert group.pending, "nobody takes it"
    threading.Thread(target=group.close, daemon=True).start()
    time.sleep(0.5)
    print("left", flush=True)
"""


def test_a_run_that_ends_while_something_is_sent_ends_as_it_should() -> None:
    """The group's destructor waits for what is under way, and aborts a process that ends meanwhile."""
    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "left\n"
    assert done.returncode == 0, done.stderr
