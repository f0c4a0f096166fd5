"""What differs from one kind of server to another, as an engine needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from grouprl.rollout.servers.http_client import ServerError
from grouprl.rollout.servers.replies import Sampled
from grouprl.rollout.servers.requests import PromptRequest
from grouprl.rollout.servers.server_pool import Server
from grouprl.rollout.servers.weights import WeightMemory

Way: TypeAlias = Literal["shared_memory", "broadcast", "disk", "adapters"]
"""How weights reach a server."""
Errors: TypeAlias = dict[Server, ServerError]
"""What went wrong, and at which servers."""


class AllAtOnce(Protocol):
    """Gives weights to several servers at the same time."""

    def give(self, servers: Sequence[Server], label: str, memory: WeightMemory) -> Errors:
        """Bring one version to servers under the name `label`; return what went wrong, and at which."""


class Sleep(Protocol):
    """Lets servers free memory between their last request and their next weights."""

    def begin(self, server: Server) -> None:
        """Have a server sleep; raises ServerError where it does not."""

    def lasts(self, server: Server) -> bool:
        """Whether a server sleeps."""


class Dialect(Protocol):
    """The calls of one kind of server, with what it needs to know of the policy (`ServedPolicy`) and the settings."""

    @property
    def health(self) -> str:
        """What a server that is up answers."""

    @property
    def broadcast(self) -> AllAtOnce | None:
        """How servers whose `way` is broadcast get weights; None where there is no such way."""

    @property
    def sleep(self) -> Sleep | None:
        """How servers sleep; None where they do not."""

    def check(self, request: PromptRequest) -> None:
        """Raise InputError for a request that these servers cannot honour."""

    def sampled_by(self, server: Server, request: PromptRequest) -> Sampled:
        """Return the completion that a server samples; raises ServerError where it samples none."""

    def give_up(self, server: Server) -> None:
        """End what a server does for this process."""

    def named(self, server: Server) -> str:
        """Return what a server calls the weights that it has; raises Stale for those of no or another run."""

    def way(self, server: Server) -> Way:
        """Return how weights reach a server; raises InputError for one that was not started so that it takes any."""

    def write(self, label: str, ways: set[Way]) -> None:
        """Put the policy's weights where servers find them, on each of these ways; raises RunError of a full disk."""

    def give(self, server: Server) -> float:
        """Exchange the weights of one server for those that were written, and return what `compared` does.

        Raises:
            ServerError: it did not take them, or does not sample with them.
        """

    def compared(self, server: Server) -> float:
        """Return by how many nats a server's log-probs of the canary are off; raises Stale where that is too much."""

    def forget(self, servers: Sequence[Server]) -> None:
        """Drop the weights of long ago, at servers and on disk."""

    def own_servers(self) -> list[Server]:
        """Return the servers that the run is to start."""
