"""Servers that misbehave on the wire, with weights and with processes: named, contained, nothing lost.

They talk like vLLM. Faults in what a server answers are in test_vllm_engine.py, faults of vLLM itself in tests/on_vllm.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.config.sections import Vllm
from grouprl.core.errors import InputError, RunError
from grouprl.policy import load_policy
from grouprl.rollout.servers.folder import ServerFolder, remove_abandoned
from grouprl.rollout.servers.own_server import OwnServer
from grouprl.rollout.vllm.engine import VllmEngine
from grouprl.training.loop import train
from marked_processes import marked
from served_policies import LETTERS, REQUESTS, SIZE, Stand, engines, small_policy
from vllm_brain import Brain
from vllm_stand_in import GENERATE, MadeUp, Raw, StandIn, standing_in

LIGHT = Path(__file__).parents[1] / "support" / "vllm_stand_in.py"
# The end of a connection is said: a client that keeps it would send its next request into the close.
OK, JSON = b"HTTP/1.1 200 OK\r\nconnection: close\r\n", b"content-type: application/json\r\n"
Tiny = Any


@pytest.fixture
def policy() -> Tiny:
    return small_policy()


@pytest.fixture
def stand(policy: Tiny) -> Iterator[Stand]:
    """Completions follow from seeds."""
    vllm = {"start_timeout": 3.0, "canary": 1e3}
    with engines(lambda **settings: VllmEngine(policy, Vllm(**settings)), lambda: StandIn(MadeUp()), **vllm) as make:
        yield make


def completions(path: str, body: Any) -> bool:
    """Whether completions are asked for, and not the canary."""
    return path == GENERATE and "prompt_logprobs" not in body["sampling_params"]


WIRE: dict[str, tuple[Raw, str]] = {
    "a reset before the answer": (Raw(reset=True), "does not answer"),
    "a reset in the middle of it": (Raw(OK + b"content-length: 900\r\n\r\n{", reset=True), "does not answer"),
    "half an answer": (Raw(OK + b'content-length: 900\r\n\r\n{"choices": ['), "does not answer"),
    "no HTTP": (Raw(b"\x00\xff SSH-2.0\r\n\r\n"), "does not answer"),
    "endless headers": (Raw(OK + b"x: y\r\n" * 100000 + b"\r\n"), "does not answer"),
    "a number that is none": (Raw(OK + b"content-length: 9" + b"9" * 99 + b"\r\n\r\n{}"), "does not answer"),
    "chunks that are none": (Raw(OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n"), "does not answer"),
    "another place": (Raw(b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"), "status 302"),
    "letters that are none": (Raw(OK + b"content-length: 3\r\n\r\n\xff\xfe\x00"), "not JSON"),
    "a deep JSON": (Raw(OK + b"content-length: 200000\r\n\r\n" + b"[" * 200000), "not JSON|one completion"),
    "a huge number": (Raw(OK + JSON + b"content-length: 9000\r\n\r\n" + b"9" * 9000), "not JSON|one completion"),
}


@pytest.mark.parametrize("name", WIRE)
def test_a_fault_of_the_wire_is_contained(name: str, stand: Any) -> None:
    raw, words = WIRE[name]
    engine, (server,), _ = stand()
    whole = engine.sample(REQUESTS)
    left = [1]

    def once(path: str, body: Any, answer: Any) -> Any:
        if not completions(path, body) or not left[0]:
            return answer
        left[0] -= 1
        return raw

    server.fault = once
    if "302" in words:  # it says no, and says it again to whoever asks again
        with pytest.raises(InputError, match=words):
            engine.sample(REQUESTS)
        return
    assert engine.sample(REQUESTS).actions == whole.actions
    left[0] = 1000
    with pytest.raises(RunError, match=words):
        engine.sample(REQUESTS)


def test_a_server_that_trickles_is_late(stand: Any) -> None:
    """It sends a byte now and then, for two minutes: each is in time, the answer is not."""
    engine, servers, said = stand(2, timeout=3.0)
    whole = engine.sample(REQUESTS)
    drop = Raw(OK + b"content-length: 900\r\n\r\n", *[b" "] * 240, pause=0.5)
    servers[0].fault = lambda path, body, answer: drop if completions(path, body) else answer
    assert engine.sample(REQUESTS).actions == whole.actions
    assert [server.state for server in engine.fleet.servers] == ["aside", "up"]
    assert "has not answered for 3 seconds" in said[0]


def test_log_probs_of_any_kind_are_numbers_or_refused(stand: Any) -> None:
    engine, (server,), _ = stand(tries=1)
    for wrong in (10**400, -(10**400), float("inf"), float("-inf"), True, "-1", [], {}):

        def change(path: str, body: Any, answer: Any, wrong: Any = wrong) -> Any:
            if completions(path, body):
                answer["choices"][0]["logprobs"]["content"][0]["logprob"] = wrong
            return answer

        server.fault = change
        with pytest.raises(RunError, match="a log-prob is"):
            engine.sample(REQUESTS[:1])


@pytest.mark.parametrize("label", ["²", "run.²", "9" * 5000, "", "run.", "run.--1", "another.1", "unfinished"])
def test_weights_of_an_odd_name_are_stale(label: str, stand: Any) -> None:
    engine, (server,), said = stand()
    whole = engine.sample(REQUESTS)
    server.label = label.replace("run", engine.run)
    assert engine.sample(REQUESTS).actions == whole.actions
    assert "other weights than it was given" in said[0]


def test_a_request_is_answered_once(stand: Any) -> None:
    """Answers that come too late, or on a broken connection, are of nobody: as many completions as requests."""
    engine, (server,), _ = stand(tries=len(REQUESTS) + 1)
    engine.sample(REQUESTS[:1])
    seen: dict[int, int] = {}

    def broken_at_first(path: str, body: Any, answer: Any) -> Any:
        if not completions(path, body):
            return answer
        seed = body["sampling_params"]["seed"]
        seen[seed] = seen.get(seed, 0) + 1
        return (
            Raw(OK + b"content-length: 900\r\n\r\n" + json.dumps(answer).encode()[:50]) if seen[seed] == 1 else answer
        )

    server.fault = broken_at_first
    found = engine.sample(REQUESTS)
    assert len(found.actions) == len(REQUESTS)
    assert set(seen) == {request.seed for request in REQUESTS}
    assert set(seen.values()) == {2}, "each is sent again once, with its seed"


def test_other_tokens_than_were_sampled_are_seen_in_the_gap(tmp_path: Path) -> None:
    """Each token is another one of the vocabulary, with a log-prob that is not its own."""
    load_policy("tiny", alphabet=LETTERS, seed=1, **SIZE).save(tmp_path / "model")
    server = StandIn(Brain(load_policy(str(tmp_path / "model"))))

    def shift(path: str, body: Any, answer: Any) -> Any:
        if completions(path, body):
            choice = answer["choices"][0]
            for at in range(len(choice["token_ids"]) - (choice["finish_reason"] == "stop")):
                token = 3 + (choice["token_ids"][at] - 2) % 90
                choice["token_ids"][at] = choice["logprobs"]["content"][at]["token_id"] = token
                choice["logprobs"]["content"][at]["logprob"] -= 1.0
        return answer

    server.fault = shift
    paid = tmp_path / "paid.py"
    paid.write_text("def of_letters(completion: str) -> float:\n    return sum(map(ord, completion)) % 7 / 7\n")
    with standing_in(server) as address:
        config = parse_config(
            {
                "task": {"name": "reverse", "length": 2},
                "model": {"name": str(tmp_path / "model")},
                "batch": {"prompts": 4, "group_size": 4},
                "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
                "steps": 2,
                "reward": {"function": f"{paid}:of_letters", "workers": 0},
                "sampling": {"engine": "vllm", "max_new_tokens": 2, "vllm": {"addresses": [address], "tries": 50}},
            }
        )
        folder = train(config, folder=tmp_path / "run", console=Console(file=io.StringIO())).folder
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert max(record.get("logp_gap_max", 0.0) for record in records) > 0.5


# ------------------------------------------------------------------------------------------------------ weights


def test_a_server_that_hangs_on_new_weights_is_done_without(policy: Tiny, stand: Any) -> None:
    engine, servers, said = stand(2, timeout=3.0)
    engine.publish(0, policy)
    over = threading.Event()
    servers[0].fault = lambda path, body, answer: over.wait(60) if path == "/update_weights" else answer
    engine.publish(1, policy)
    assert [server.state for server in engine.fleet.servers] == ["aside", "up"]
    assert any("set aside" in sentence for sentence in said)
    assert set(engine.sample(REQUESTS).version_bt[:, 0].tolist()) == {1}
    over.set()


def test_a_full_disk_ends_the_run_in_words(policy: Tiny, stand: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, (server,), _ = stand(weights="disk")
    engine.publish(0, policy)
    before = server.label

    def full(folder: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(policy, "save", full)
    with pytest.raises(RunError, match=r"the disk is full.*--resume"):
        engine.publish(1, policy)
    assert server.label == before, "it was told of nothing"
    assert not server.paused
    monkeypatch.undo()
    engine.publish(1, policy)
    assert server.label == f"{engine.run}.1"


def test_a_server_that_cannot_read_its_weights_samples_nothing(policy: Tiny, stand: Any) -> None:
    engine, (server,), _ = stand(weights="disk")
    engine.publish(0, policy)
    words = b'{"error": {"message": "SafetensorError: incomplete metadata, file not fully covered"}}'
    server.fault = lambda path, body, answer: (
        (500, words) if body and body.get("method") == "reload_weights" else answer
    )
    with pytest.raises(RunError, match="incomplete metadata"):
        engine.publish(1, policy)
    assert server.paused
    assert server.label.endswith(".unfinished")


# ------------------------------------------------------------------------------------------------ own servers


def test_a_hung_server_of_the_runs_own_is_replaced(policy: Tiny, tmp_path: Path) -> None:
    env = {"GRL_DIED": str(tmp_path / "died")}
    command = (sys.executable, str(LIGHT))
    engine = VllmEngine(policy, Vllm(command=command, env=env, servers=2, canary=1e3, timeout=3.0))
    said: list[str] = []
    engine.say = said.append
    engine.publish(0, policy)
    whole = engine.sample(REQUESTS)
    first, second = engine.fleet.servers
    assert first.own is not None
    before = first.own.pid
    os.killpg(before, signal.SIGSTOP)
    many = [replace(request, seed=100 + i) for i, request in enumerate(REQUESTS * 4)]
    assert len(engine.sample([*REQUESTS, *many])) == len(REQUESTS) + len(many)
    engine.fleet.up()
    assert first.own.pid != before
    assert (first.state, second.state) == ("up", "up")
    assert "is replaced" in said[0]
    assert engine.sample(REQUESTS).actions == whole.actions
    engine.close()


def test_what_a_server_says_of_wrong_arguments_is_shown() -> None:
    """vLLM checks its arguments with pydantic, whose reason stands on a line of its own."""
    lines = ["Traceback …", "pydantic_core.ValidationError: 1 validation error for ModelConfig"]
    lines += ["  Value error, Sleep mode is not supported. [type=value_error, input_value={}]", "    For further …"]
    server = OwnServer([sys.executable, "-c", f"print({chr(10).join(lines)!r})"], os.environ)
    server.start()
    until = time.monotonic() + 60
    while server.alive and time.monotonic() < until:
        time.sleep(0.05)
    expected = "ValidationError: 1 validation error for ModelConfig\nValue error, Sleep mode is not supported. "
    assert server.last_words() == expected
    server.end()


RUNS = """
import os, signal, sys
from grouprl.config.sections import Vllm
from grouprl.policy import load_policy
from grouprl.protocols import Request
from grouprl.rollout.vllm.engine import VllmEngine

def run(name):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    env = {"GRL_DIED": "/", "GRL_MARK": sys.argv[2] + name, "GRL_CHILD": "1"}
    engine = VllmEngine(policy, Vllm(command=(sys.executable, sys.argv[1]), env=env, canary=1e3))
    engine.publish(0, policy)
    print(os.getpid(), flush=True)
    while True:
        engine.sample([Request((3, 4, 5), 8, 1)])

policy = load_policy("tiny", alphabet="0123456789+= ", hidden=16, layers=1, heads=2, intermediate=32, max_positions=64)
for name in sys.argv[3:]:
    pid = os.fork()
    if pid == 0:
        run(name)
    os.waitpid(pid, 0)
"""


def test_no_server_outlives_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither servers nor what they started, which ignores the signals that can be ignored; the next run tidies up."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    mark, numbers = uuid.uuid4().hex, (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    words = [sys.executable, "-c", RUNS, str(LIGHT), mark, *(number.name for number in numbers)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as runs:
        assert runs.stdout is not None
        for number in numbers:
            pid = int(runs.stdout.readline())
            assert len(marked(mark + number.name)) == 2, "a server, and a process that it has started"
            os.kill(pid, number)
            until = time.monotonic() + 120
            while marked(mark + number.name) and time.monotonic() < until:
                time.sleep(0.1)
            assert not marked(mark + number.name), number
    living = ServerFolder()
    assert sorted(tmp_path.glob("grouprl-servers-*")) == [living.path], (
        "what was killed left its folder, and it is gone"
    )
    remove_abandoned()
    assert (living.path / "lock").exists(), "the folder of a living run stays"
    living.remove()
    assert not living.path.exists()
