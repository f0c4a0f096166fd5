"""What a kind of servers that nobody has written for needs: a dialect of its own, and settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from grouprl.config.sections import Servers
from grouprl.core.errors import InputError, RunError
from grouprl.protocols import Request
from grouprl.records.tokens import Tokens
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.rollout.servers.dialect import Way
from grouprl.rollout.servers.engine import ServerEngine
from grouprl.rollout.servers.http_client import Gone, Refused
from grouprl.rollout.servers.replies import Sampled
from grouprl.rollout.servers.requests import PromptRequest, check_request
from grouprl.rollout.servers.served_policy import ServedPolicy
from grouprl.rollout.servers.server_pool import Server
from grouprl.testing import check_sampler, check_sync
from served_policies import REQUESTS, engines, moved, small_policy
from vllm_stand_in import StandIn


class Parrots(Servers):
    """Servers of nobody."""

    key: ClassVar[str] = "sampling.parrot"
    kind: ClassVar[str] = "Parrot"
    command: tuple[str, ...] = ("parrot",)
    weights: str = "auto"
    key_env: str = "PARROT_KEY"


class ParrotDialect:
    """What servers would sample is sampled here, with a copy of the policy."""

    health, broadcast, sleep = "/health", None, None

    def __init__(self, served: ServedPolicy) -> None:
        self.served, self.copy = served, served.policy.copied(trainable=False)
        self.written: Any = None
        self.names: dict[Server, str] = {}
        self.errors: list[Exception] = []
        """What goes wrong next."""
        self.deaf = False

    def check(self, request: PromptRequest) -> None:
        check_request(request)

    def sampled_by(self, server: Server, request: PromptRequest) -> Sampled:
        if self.errors:
            raise self.errors.pop()
        found = LocalSampler(self.copy).sample([request])
        ids = found.actions[0]
        labels = (self.names[server],) * len(ids)
        return Sampled(ids, tuple(found.logp_bt[0].tolist()), labels, not found.truncated_b[0])

    def give_up(self, server: Server) -> None:
        server.wire.cut()

    def named(self, server: Server) -> str:
        return self.names[server]

    def way(self, server: Server) -> Way:
        return "shared_memory"

    def write(self, label: str, ways: set[Way]) -> None:
        assert ways == {"shared_memory"}
        self.written = {name: tensor.clone() for name, tensor in self.served.policy.model.state_dict().items()}

    def give(self, server: Server) -> float:
        if not self.deaf:
            self.copy.model.load_state_dict(self.written)
        self.names[server] = str(self.served.label)
        return self.compared(server)

    def compared(self, server: Server) -> float:
        rows = self.served.canary.rows
        logp_bt = self.copy.logp(Tokens.of([row[:1] for row in rows], [row[1:] for row in rows]))
        return self.served.canary.check(logp_bt.tolist())

    def forget(self, servers: Sequence[Server]) -> None:
        assert len(servers) == 2

    def own_servers(self) -> list[Server]:
        return []


@pytest.fixture
def policy() -> Any:
    return small_policy()


@pytest.fixture
def stood(policy: Any) -> Iterator[tuple[ServerEngine, ParrotDialect, list[str]]]:
    dialects: list[ParrotDialect] = []

    def engine(**settings: Any) -> ServerEngine:
        served = ServedPolicy(policy, Parrots(**settings), None)
        dialects.append(ParrotDialect(served))
        return ServerEngine(served, dialects[0])

    with engines(engine, StandIn, start_timeout=3.0) as make:
        found, _, said = make(2)
        yield found, dialects[0], said


def test_a_dialect_makes_an_engine(stood: Any, policy: Any) -> None:
    engine, _, said = stood
    check_sampler(engine, REQUESTS, pieces=False)
    check_sync(engine, policy, sample=lambda: engine.sample(REQUESTS))
    assert engine.metrics()["canary_gap"] < 1e-4
    engine.rest()
    assert not said


def test_a_request_that_fails_is_sent_again(stood: Any) -> None:
    engine, dialect, _ = stood
    whole = engine.sample(REQUESTS)
    dialect.errors = [Gone("broken")] * 2
    assert engine.sample(REQUESTS[:1]).actions == whole.actions[:1]
    dialect.errors = [Gone("broken")] * 3
    with pytest.raises(RunError, match="a request failed 3 times; the last time: broken"):
        engine.sample(REQUESTS[:1])


def test_what_a_server_refuses_is_said_with_its_remedy(stood: Any) -> None:
    engine, dialect, _ = stood
    dialect.errors = [Refused(400, "no parrot is so long", "it has room for 9 words", "Say less")]
    with pytest.raises(InputError, match=r"no parrot is so long.*room for 9 words.*Say less"):
        engine.sample(REQUESTS[:1])


def test_weights_that_do_not_arrive_are_noticed(stood: Any, policy: Any) -> None:
    engine, dialect, said = stood
    engine.publish(0, policy)
    moved(policy)
    dialect.deaf = True
    with pytest.raises(RunError, match="did not take version 1 of the weights, twice"):
        engine.publish(1, policy)
    assert all("exchanged once more" in sentence for sentence in said)


def test_errors_name_the_kind_and_the_engine(policy: Any) -> None:
    with pytest.raises(InputError, match="the engine parrot with a policy that is object"):
        ServedPolicy(object(), Parrots(), None)
    with pytest.raises(ValueError, match="name the program of Parrot"):
        Parrots(command=())


def test_no_kind_of_request_is_sent_that_no_server_honours(stood: Any) -> None:
    engine, _, _ = stood
    with pytest.raises(InputError, match="A prompt has no tokens"):
        engine.sample([Request((), 3, 1)])
