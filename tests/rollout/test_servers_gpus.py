"""The GPUs of a run's own servers are not those of its ranks."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import pytest
import torch

from grouprl.config.sections import Sglang, Vllm
from grouprl.core.errors import InputError
from grouprl.rollout.servers import starting
from grouprl.rollout.servers.starting import gpus_of_servers, own_servers

CUDA = torch.device("cuda", 0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make this a machine with so many GPUs, of which those of `visible` are shown, for a run in so many processes."""

    def make(gpus: int, processes: int = 1, visible: str = "") -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        if visible:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        if processes > 1:
            for name, value in {"RANK": 0, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}.items():
                monkeypatch.setenv(name, str(value))

    return make


@pytest.mark.parametrize(
    ("on", "servers", "expected"),
    [
        ({"gpus": 4, "processes": 2}, 2, ["2", "3"]),
        ({"gpus": 8, "processes": 4}, 2, ["4,5", "6,7"]),
        ({"gpus": 8, "processes": 2, "visible": "1,3,5,7"}, 1, ["5,7"]),
        ({"gpus": 2}, 1, ["1"]),
        ({"gpus": 1}, 1, ["0"]),
    ],
)
def test_servers_share_the_gpus_that_ranks_leave(
    on: dict[str, Any], servers: int, expected: list[str], machine: Any
) -> None:
    machine(**on)
    for settings in (Vllm(servers=servers), Sglang(servers=servers)):
        assert gpus_of_servers(settings, CUDA) == expected


def test_sleeping_servers_are_on_the_gpus_of_ranks(machine: Any) -> None:
    machine(gpus=2, processes=2)
    assert gpus_of_servers(Vllm(servers=2, sleep=True), CUDA) == ["0", "1"]
    assert gpus_of_servers(Vllm(servers=3, sleep=True), CUDA) == ["0", "1", "0"]


def test_a_single_process_keeps_the_gpu_that_its_model_is_on(machine: Any) -> None:
    machine(gpus=3)
    assert gpus_of_servers(Vllm(), torch.device("cuda", 1)) == ["0,2"]


def test_too_few_gpus_are_refused_unless_the_user_decides(machine: Any) -> None:
    machine(gpus=2, processes=2)
    with pytest.raises(InputError, match=r"sampling.vllm.servers = 1 beside 2 processes with 2 GPUs"):
        gpus_of_servers(Vllm(), CUDA)
    assert gpus_of_servers(Vllm(env={"CUDA_VISIBLE_DEVICES": "1"}), CUDA) == []
    assert gpus_of_servers(Vllm(), torch.device("cpu")) == []


def test_servers_are_started_with_them(machine: Any) -> None:
    machine(gpus=3)
    servers = own_servers(Vllm(servers=2, command=sys.executable), {"A": "b"}, lambda port: ["", str(port)], CUDA)
    given = [server.own.environment for server in servers if server.own is not None]
    assert given == [{"A": "b", "CUDA_VISIBLE_DEVICES": each} for each in ("1", "2")]


class Ports:
    """Sockets of a system that gives the lowest free port."""

    taken: ClassVar[set[int]] = set()

    def __enter__(self) -> Ports:
        return self

    def bind(self, place: tuple[str, int]) -> None:
        self.port = next(port for port in range(5000, 6000) if port not in self.taken)
        self.taken.add(self.port)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def __exit__(self, *error: object) -> None:
        self.taken.discard(self.port)


def test_own_servers_have_a_port_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting.socket, "socket", Ports)
    found: list[int] = []
    settings = Vllm(servers=3, command=(sys.executable,))
    own_servers(settings, {}, lambda port: found.append(port) or ["vllm"], torch.device("cpu"))  # type: ignore[func-returns-value]
    assert sorted(set(found)) == found == [5000, 5001, 5002]
