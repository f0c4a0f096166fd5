"""Servers of vLLM that sleep while the trainer computes: which calls they get, in which order.

A stand-in answers, so this shows the order alone: that memory is freed, and that a server which has slept computes as
before, only a GPU shows (`make gpu`).
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.config.sections import Vllm
from grouprl.core.errors import GrouprlError, InputError, RunError
from grouprl.plan.plan import plan
from grouprl.policy import load_policy
from grouprl.rollout.vllm.engine import VllmEngine
from grouprl.rollout.vllm.start_server import serve_words
from grouprl.training.loop import train
from served_policies import LETTERS, REQUESTS, RUN, SIZE, small_policy
from vllm_brain import Brain
from vllm_stand_in import GENERATE, StandIn, standing_in

ASLEEP = "/sleep?level=2&mode=wait"
GIVEN = ["/update_weight_version", "/start_weight_update", "/update_weights", "/finish_weight_update"]
WOKEN = ["/wake_up?tags=weights", *GIVEN, "/wake_up?tags=kv_cache", "/resume"]
Tiny = Any


@pytest.fixture
def policy() -> Tiny:
    return small_policy()


@pytest.fixture
def stood(policy: Tiny) -> Iterator[tuple[VllmEngine, StandIn]]:
    server = StandIn(Brain(policy))
    with standing_in(server) as address:
        engine = VllmEngine(policy, Vllm(addresses=(address,), sleep=True, start_timeout=3.0))
        yield engine, server
        engine.close()


def calls(server: StandIn) -> list[str]:
    """What a server was asked, in order; of completions and of the canary one entry."""
    found = [path for path, _ in server.got if path not in ("/health", "/weight_info", "/collective_rpc")]
    server.got.clear()
    return [path for number, path in enumerate(found) if path != GENERATE or found[number - 1 : number] != [GENERATE]]


def test_weights_wake_a_server(policy: Tiny, stood: Any) -> None:
    engine, server = stood
    engine.publish(0, policy)
    assert calls(server) == ["/pause?mode=keep", *GIVEN, "/resume", GENERATE], "a server is awake at first"
    for version in (1, 2):
        engine.rest()
        assert server.paused
        engine.publish(version, policy)
        assert calls(server) == [ASLEEP, *WOKEN, GENERATE]
        assert not server.paused
        assert set(engine.sample(REQUESTS).version_bt[:, 0].tolist()) == {version}
        assert calls(server) == [GENERATE]


def test_a_request_wakes_a_server_with_the_weights_of_now(policy: Tiny, stood: Any) -> None:
    engine, server = stood
    engine.publish(0, policy)
    whole = engine.sample(REQUESTS)
    engine.rest()
    calls(server)
    assert engine.sample(REQUESTS).actions == whole.actions
    assert calls(server) == [*WOKEN, GENERATE]
    assert engine.sample(REQUESTS).actions == whole.actions
    assert calls(server) == [GENERATE], "once"


def test_a_server_does_not_wake_with_half_an_update(policy: Tiny, stood: Any) -> None:
    engine, server = stood
    engine.publish(0, policy)
    engine.rest()
    server.down = ("/update_weights", b"half way")
    with pytest.raises(RunError, match="half way"):
        engine.publish(1, policy)
    assert server.lacks == {"kv_cache"}, "it cannot sample"
    assert server.paused
    assert server.label == f"{engine.run}.unfinished"


def test_a_server_that_failed_half_way_wakes_at_the_second_try(policy: Tiny, stood: Any) -> None:
    engine, server = stood
    engine.publish(0, policy)
    engine.rest()
    left = [1]

    def once(path: str, body: Any, answer: Any) -> Any:
        return (500, b"half way") if path == "/update_weights" and left and left.pop() else answer

    server.fault = once
    engine.publish(1, policy)
    assert not server.lacks
    assert not server.paused


def test_a_server_without_the_calls_ends_the_run_in_words(policy: Tiny, stood: Any) -> None:
    engine, server = stood
    engine.publish(0, policy)
    server.fault = lambda path, body, answer: (404, b'{"detail": "Not Found"}') if "/sleep" in path else answer
    with pytest.raises(GrouprlError, match=r"sleep.*refuses with status 404"):
        engine.rest()


def test_a_run_lets_its_servers_sleep_in_each_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_policy("tiny", alphabet=LETTERS, seed=1, **SIZE).save(tmp_path / "model")
    server = StandIn(Brain(load_policy(str(tmp_path / "model"))))
    monkeypatch.setattr("grouprl.plan.vllm_servers._sleep_refusals", lambda run: iter(()))
    with standing_in(server) as address:
        config = parse_config({**RUN, "model": {"name": str(tmp_path / "model")}, "steps": 2, **sleeping([address])})
        folder = train(config, folder=tmp_path / "run", console=Console(file=io.StringIO())).folder
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(record["phase"] == "train" for record in records) == 2
    found = calls(server)
    assert found.count(ASLEEP) == 2
    at = found.index(ASLEEP)
    assert found[at : at + 8] == [ASLEEP, *WOKEN]


# ----------------------------------------------------------------------------------------------- plan, settings


def sleeping(addresses: list[str] | None = None, **more: Any) -> dict[str, Any]:
    where = {"addresses": addresses} if addresses else {"command": [sys.executable]}
    return {"sampling": {"engine": "vllm", "vllm": {**where, "sleep": True, **more}}}


def test_a_plan_refuses_sleep_without_an_accelerator() -> None:
    planned = plan(parse_config({**RUN, **sleeping()}))
    assert any("refuses --enable-sleep-mode" in each for each in planned.refusals)
    assert any("servers free their accelerator's memory" in note for note in planned.notes)
    found = plan(parse_config({**RUN, **sleeping(), "run": {"async_steps": 1}})).refusals
    assert any("run.async_steps servers sample while the trainer computes" in each for each in found)


def test_an_own_server_without_an_accelerator_is_refused(policy: Tiny) -> None:
    with pytest.raises(InputError, match="not supported on current platform"):
        VllmEngine(policy, Vllm(command=(sys.executable,), sleep=True))
    assert "--enable-sleep-mode" in serve_words(Vllm(sleep=True), policy, Path("/model"), 8000)
    assert "--enable-sleep-mode" not in serve_words(Vllm(), policy, Path("/model"), 8000)


@pytest.mark.parametrize("other", [{"weights": "broadcast"}, {"adapters": "loaded"}])
def test_settings_that_contradict_each_other(other: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="sleep is for a server on the trainer's own machine"):
        parse_config({**RUN, **sleeping(**other)})
