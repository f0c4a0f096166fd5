"""Servers in strangers' environments: proxies, IPv6, TLS, keys, prefixes, balancers, wrong addresses."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from grouprl.config.run import parse_config
from grouprl.config.sections import Sglang, Vllm
from grouprl.core.errors import InputError, RunError
from grouprl.plan.plan import plan
from grouprl.rollout.servers.http_client import Dropped, Refused, Wire
from grouprl.rollout.servers.starting import wire_to
from grouprl.rollout.sglang.start_server import server_environment as sglang_environment
from grouprl.rollout.vllm.engine import VllmEngine
from grouprl.rollout.vllm.start_server import server_environment
from served_policies import REQUESTS, RUN, small_policy
from vllm_stand_in import Listening, StandIn, handler, standing_in


@pytest.fixture
def server() -> StandIn:
    return StandIn()


def samples(address: str) -> Any:
    """Completions of a server at an address."""
    policy = small_policy()
    engine = VllmEngine(policy, Vllm(addresses=(address,), canary=1e3, start_timeout=5.0, timeout=20.0))
    try:
        engine.publish(0, policy)
        return engine.sample(REQUESTS).actions
    finally:
        engine.close()


def planned(*addresses: str, **vllm: Any) -> Any:
    settings = {"engine": "vllm", "vllm": {"addresses": list(addresses), **vllm}}
    return plan(parse_config({**RUN, "sampling": settings}))


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_proxies_of_the_environment_are_not_asked(name: str, server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    with standing_in(server) as address:
        assert len(samples(address)) == len(REQUESTS)


def test_an_address_of_ipv6(server: StandIn) -> None:
    class Six(Listening):
        address_family = socket.AF_INET6

    try:
        listening = Six(("::1", 0), handler(server))
    except OSError:
        pytest.skip("this machine has no IPv6")
    threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
    address = f"http://[::1]:{listening.server_address[1]}"
    assert len(samples(address)) == len(REQUESTS)
    assert not planned(address).refusals
    listening.shutdown()
    listening.server_close()


@pytest.fixture
def secure(server: StandIn, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(address, certificate) of a server that speaks TLS, whose certificate nobody else knows."""
    pair = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(pair[0]), "-out", str(pair[1])]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no program makes a certificate here")
    listening = Listening(("127.0.0.1", 0), handler(server))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair[1], pair[0])
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
    yield f"https://127.0.0.1:{listening.server_address[1]}", pair[1]
    listening.shutdown()
    listening.server_close()


def test_a_server_behind_tls(secure: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    address, certificate = secure
    assert any("CERTIFICATE_VERIFY_FAILED" in each for each in planned(address).refusals)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert not planned(address).refusals
    assert len(samples(address)) == len(REQUESTS)


def test_a_server_below_a_prefix(server: StandIn) -> None:
    answer = server.answer

    def below(path: str, body: Any) -> Any:
        if not path.startswith("/team/model/"):
            return 404, b"nobody here"
        return answer(path.removeprefix("/team/model"), body)

    server.answer = below  # type: ignore[method-assign]
    with standing_in(server) as address:
        assert not planned(f"{address}/team/model/").refusals
        assert len(samples(f"{address}/team/model")) == len(REQUESTS)


def test_a_server_that_wants_a_key(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM wants it: for calls below /v1 and /inference."""
    made = handler(server)

    class Keyed(made):  # type: ignore[misc, valid-type]
        def _reply(self, body: Any) -> None:
            guarded = self.path.startswith(("/v1", "/inference"))
            if guarded and self.headers.get("Authorization") != "Bearer open sesame":
                sent = json.dumps({"error": "Unauthorized"}).encode()
                self.send_response(401)
                self.send_header("content-length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)
                return
            super()._reply(body)

    listening = Listening(("127.0.0.1", 0), Keyed)
    threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
    address = f"http://127.0.0.1:{listening.server_address[1]}"
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert any("Its key is read from VLLM_API_KEY, which is not set" in each for each in planned(address).refusals)
    assert not any("scale-out" in each for each in planned(address).refusals)
    with pytest.raises(RunError, match="VLLM_API_KEY, which is not set"):
        samples(address)
    monkeypatch.setenv("VLLM_API_KEY", "another")
    assert any("VLLM_API_KEY, which is set" in each for each in planned(address).refusals)
    monkeypatch.setenv("VLLM_API_KEY", "open sesame\n")
    assert not planned(address).refusals
    assert len(samples(address)) == len(REQUESTS)
    monkeypatch.setenv("MINE", "open sesame")
    assert not planned(address, key_env="MINE").refusals
    listening.shutdown()
    listening.server_close()


def test_an_own_server_gets_the_key_that_it_is_asked_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "theirs")
    for settings, key in ((Vllm(), "theirs"), (Vllm(env={"VLLM_API_KEY": "mine"}), "mine")):
        assert server_environment(settings, torch.device("cpu"))["VLLM_API_KEY"] == key
        assert wire_to("http://127.0.0.1:1", settings)._headers["Authorization"] == f"Bearer {key}"


def test_an_own_server_knows_nothing_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look for the store of torchrun's agent, which does not know it."""
    told = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "29500", "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    own = {"WORLD_SIZE": "2"}
    for found in (server_environment(Vllm(env=own), torch.device("cpu")), sglang_environment(Sglang(env=own))):
        assert not {"TORCHELASTIC_USE_AGENT_STORE", "MASTER_PORT", "RANK"} & found.keys()
        assert found["WORLD_SIZE"] == "2", "what is written in the configuration holds"


def test_a_balancer_before_several_servers_is_refused(server: StandIn) -> None:
    turns = [0]

    def turn(path: str, body: Any, answer: Any) -> Any:
        if path == "/collective_rpc" and body["method"] == "grouprl_name":
            turns[0] += 1
            return {"results": [f"server {turns[0] % 2}"]}
        return answer

    server.fault = turn
    with standing_in(server) as address:
        assert any("several servers take turns" in each for each in planned(address).refusals)


def test_one_server_under_two_addresses_is_refused(server: StandIn) -> None:
    with standing_in(server) as address:
        refused = planned(address, address.replace("127.0.0.1", "localhost")).refusals
        assert any("are those of one server" in each for each in refused)
        with pytest.raises(InputError, match="is listed twice"):
            planned(address, address + "/")


@pytest.mark.parametrize("status", [408, 425, 429])
def test_who_is_busy_is_asked_again(status: int, server: StandIn) -> None:
    busy = [1]
    server.fault = lambda path, body, answer: (
        (status, b"later") if "inference" in path and busy and busy.pop() else answer
    )
    with standing_in(server) as address, pytest.raises(Dropped, match=f"status {status}: .later"):
        Wire(address).post("/inference/v1/generate", {"token_ids": [3], "sampling_params": {"max_tokens": 1}})
    busy = [1]
    with standing_in(server) as address:
        assert len(samples(address)) == len(REQUESTS)


def test_where_else_a_server_sends_is_said() -> None:
    import http.server

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(308)
            self.send_header("location", f"https://vllm.example/health?{self.headers.get('authorization', '')}")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    listening = Listening(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
    with pytest.raises(Refused, match=r"it sends to https://vllm.example/health"):
        Wire(f"http://127.0.0.1:{listening.server_address[1]}").get("/health")
    with pytest.raises(Refused, match=r"health\?Bearer \[the API key\]"):
        Wire(f"http://127.0.0.1:{listening.server_address[1]}", "sk-quoted\n").get("/health")
    with pytest.raises(InputError, match="the API key in VLLM_API_KEY has a character at place 3"):
        Wire("http://127.0.0.1:9", "sk\rx", "VLLM_API_KEY")
    listening.shutdown()
    listening.server_close()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://::1:8000", r"It must look like .* http://\[::1\]:8000"),
        ("http://[::1", r"It must look like"),
        ("http://a:99999", "It must look like"),
        ("http://a:port", "It must look like"),
        ("http://a b:80", "It must look like"),
        ("http://:8000", "It must look like"),
        ("http://me:secret@a:80", "only have a host, a port and a path"),
        ("http://a:80/?model=x", "only have a host, a port and a path"),
        ("http://a:80/v1", "Leave out the /v1"),
        ("http://a:80/v1/", "Leave out the /v1"),
    ],
)
def test_addresses_that_are_none(address: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Wire(address)
    assert any("the address" in refusal for refusal in planned(address).refusals)
