"""Weights that are sent to servers of vLLM, by gloo, and servers that die or fall silent meanwhile: `make vllm`.

Two own servers are started, one of them once more, and at the end a third, of two workers. They meet the trainer at
this machine's address on its network where it has one, not at the loopback.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from grouprl.config.sections import Vllm
from grouprl.policy import load_policy
from grouprl.rollout.vllm import broadcast
from grouprl.rollout.vllm.engine import VllmEngine
from grouprl.rollout.vllm.server_plugin.grouprl_group import BrokenOff, address_towards
from real_servers import REQUESTS, ROUNDING, apart, moved, saved_model, versions

PROGRAM = os.environ.get("GRL_VLLM", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="GRL_VLLM names no program: make vllm")
ELSEWHERE = "198.51.100.1"
"""An address that nobody has: the way there begins at this machine's address on its network."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_policy(str(saved_model(tmp_path_factory.mktemp("broadcast"))))


@pytest.fixture(scope="module")
def engine(policy: Any) -> Iterator[VllmEngine]:
    try:
        host = address_towards(ELSEWHERE, 9)
    except OSError:  # there is no network
        host = "127.0.0.1"
    settings = Vllm(command=(PROGRAM,), servers=2, weights="broadcast", master_address=host, timeout=30.0)
    found = VllmEngine(policy, settings)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's 0.4 MB are sent in about twenty."""
    monkeypatch.setattr(broadcast, "PART", 2**14)


def check(engine: VllmEngine, policy: Any, version: int) -> None:
    """Every server samples from the policy as it is, under the name `version`."""
    for server in engine.fleet.servers:
        if server.state == "up":
            alone = VllmEngine.attach(policy, type(engine.attachment)((server.wire.address,), engine.run))
            found = alone.sample(REQUESTS)
            alone.close()
            assert apart(policy, REQUESTS, found) < ROUNDING
            assert versions(found) == {version}
    assert engine.gap < ROUNDING


def at_piece(engine: VllmEngine, number: int, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something before the piece `number` of the next weights is sent."""
    copied, count = engine.served.memory.copied, [0]

    def hooked(start: int, end: int) -> Any:
        count[0] += 1
        if count[0] == number:
            act()
        return copied(start, end)

    monkeypatch.setattr(engine.served.memory, "copied", hooked)


def test_weights_arrive_at_two_servers(engine: VllmEngine, policy: Any) -> None:
    for version in range(3):
        moved(policy, version)
        engine.publish(version, policy)
        check(engine, policy, version)


def test_weights_arrive_at_one_server(engine: VllmEngine, policy: Any) -> None:
    address = engine.fleet.servers[0].wire.address
    alone = VllmEngine(policy, Vllm(addresses=(address,), weights="broadcast"))
    for version in range(2):
        moved(policy, version)
        alone.publish(version, policy)
        check(alone, policy, version)
    alone.close()
    engine.publish(3, policy)
    check(engine, policy, 3)


@pytest.mark.parametrize("number", [2, 3, 5, 7, 10])
def test_layers_that_have_a_part_of_their_weights_begin_anew(
    number: int, engine: VllmEngine, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever an exchange was broken off, the next one is whole."""
    said: list[str] = []
    engine.say = said.append

    def break_off() -> None:
        raise BrokenOff("by the test")

    at_piece(engine, number, break_off, monkeypatch)
    moved(policy, number)
    engine.publish(3 + number, policy)
    assert len(said) == 2, "each server is given them once more"
    check(engine, policy, 3 + number)


def test_a_server_that_is_killed_in_the_middle_is_replaced(
    engine: VllmEngine, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    engine.say = said.append
    first = engine.fleet.servers[0]
    assert first.own is not None
    before = first.own.pid
    at_piece(engine, 5, lambda: os.killpg(before, signal.SIGKILL), monkeypatch)
    moved(policy, 4)
    engine.publish(20, policy)
    assert any("is replaced" in sentence for sentence in said)
    assert first.own.pid != before
    assert [server.state for server in engine.fleet.servers] == ["up", "up"]
    check(engine, policy, 20)
    moved(policy, 5)
    engine.publish(21, policy)
    check(engine, policy, 21)


def test_a_server_that_falls_silent_is_named_and_others_go_on(
    engine: VllmEngine, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running server, stopped in the middle: the trainer is not held up for longer than it says."""
    addresses = tuple(server.wire.address for server in engine.fleet.servers)
    said: list[str] = []
    other = VllmEngine(policy, Vllm(addresses=addresses, weights="broadcast", timeout=10.0))
    other.say = said.append
    other.publish(0, policy)
    silent = engine.fleet.servers[1].own
    assert silent is not None
    at_piece(other, 5, lambda: os.killpg(silent.pid, signal.SIGSTOP), monkeypatch)
    moved(policy, 6)
    other.publish(1, policy)
    os.killpg(silent.pid, signal.SIGCONT)
    assert f"{addresses[1]} is set aside" in said[0]
    assert [server.state for server in other.fleet.servers] == ["up", "aside"]
    check(other, policy, 1)
    other.close()
    moved(policy, 7)  # other weights than those of which it has a half
    engine.publish(22, policy)
    assert [server.state for server in engine.fleet.servers] == ["up", "up"]
    check(engine, policy, 22)


@pytest.mark.parametrize("weights", ["broadcast", "auto"])
def test_a_server_of_two_workers_that_wants_a_key(weights: str, split: str, policy: Any) -> None:
    settings = Vllm(addresses=(split,), weights=weights, key_env="GRL_TEST_KEY")
    engine = VllmEngine(policy, settings)
    for version in range(2):
        moved(policy, 8 + version)
        engine.publish(version, policy)
        assert apart(policy, REQUESTS, engine.sample(REQUESTS)) < ROUNDING
        assert engine.gap < ROUNDING
    engine.close()


@pytest.fixture(scope="module")
def split(policy: Any) -> Iterator[str]:
    """A server whose model lies half on each of two workers."""
    args = ("--tensor-parallel-size", "2")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GRL_TEST_KEY", "open sesame")
        settings = Vllm(command=(PROGRAM,), args=args, env={"VLLM_API_KEY": "open sesame"})
        found = VllmEngine(policy, settings)
        found.fleet.up()
        yield found.fleet.servers[0].wire.address
        found.close()
