"""What servers and samplers hold is released, whatever was done with it before, and nothing old stays in use."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from grouprl.config.sections import Vllm
from grouprl.policy.sharded.rank_work import WHOLE
from grouprl.rollout.servers.http_client import Gone, Wire
from grouprl.rollout.servers.server_pool import Fleet, Server
from grouprl.rollout.servers.weights import WeightMemory
from grouprl.rollout.sharded.rank_sampler import ActingCopies, _sampler


def test_memory_that_nothing_was_written_to_is_released() -> None:
    memory = WeightMemory()
    held = memory._fd
    memory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held)
    memory.close()


class EndsDuring:
    """A server's process that has died; while it is put away, another thread ends the run."""

    alive, running = False, False

    def __init__(self) -> None:
        self.fleet: Any = None

    def how_it_ended(self) -> str:
        return "it was killed"

    def start(self) -> None:
        self.running = True

    def end(self) -> None:
        self.running = False
        if self.fleet is not None:
            fleet, self.fleet = self.fleet, None
            fleet.close()


def test_a_server_that_is_replaced_while_the_run_ends_does_not_outlive_it() -> None:
    own = EndsDuring()
    server = Server(Wire("http://127.0.0.1:1"), cast("Any", own), state="up")
    own.fleet = Fleet([server], Vllm(restarts=1), "/health", lambda _: None)
    own.fleet.failed(server, Gone("no answer"))
    assert server.restarts == 1
    assert not own.running


def test_a_rank_samples_from_the_policy_that_it_has_now() -> None:
    station: Any = SimpleNamespace(kept={WHOLE: object()})
    first = _sampler(station, ActingCopies())
    assert _sampler(station, ActingCopies()) is first
    station.kept[WHOLE] = object()
    assert _sampler(station, ActingCopies()).policy is station.kept[WHOLE]
