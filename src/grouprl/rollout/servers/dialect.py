"""The interface of what differs between kinds of servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from grouprl.rollout.servers.http_client import ServerError
from grouprl.rollout.servers.replies import Sampled
from grouprl.rollout.servers.requests import PromptRequest
from grouprl.rollout.servers.server_pool import Server
from grouprl.rollout.servers.weights import WeightMemory

Way: TypeAlias = Literal["shared_memory", "broadcast", "disk", "adapters"]
"""The way in which weights reach a server."""
Errors: TypeAlias = dict[Server, ServerError]
"""Errors by the server at which they occurred."""


class AllAtOnce(Protocol):
    """Transfer of weights to several servers at the same time."""

    def give(self, servers: Sequence[Server], label: str, memory: WeightMemory) -> Errors:
        """Send one version of the weights to servers under the name `label`; return the errors by server."""


class Sleep(Protocol):
    """Sleep mode, in which servers free memory between their last request and their next weights."""

    def begin(self, server: Server) -> None:
        """Put a server to sleep. Raises ServerError if it does not."""

    def lasts(self, server: Server) -> bool:
        """Return whether a server is asleep."""


class Dialect(Protocol):
    """The calls of one kind of server, for a given policy (`ServedPolicy`) and settings."""

    @property
    def health(self) -> str:
        """Path that a server answers when it is up."""

    @property
    def broadcast(self) -> AllAtOnce | None:
        """Transfer of weights to servers whose `way` is broadcast; None if this kind has none."""

    @property
    def sleep(self) -> Sleep | None:
        """Sleep mode of the servers; None if it is not used."""

    def check(self, request: PromptRequest) -> None:
        """Raise InputError for a request that these servers cannot honour."""

    def sampled_by(self, server: Server, request: PromptRequest) -> Sampled:
        """Return the completion that a server samples. Raises ServerError if it samples none."""

    def give_up(self, server: Server) -> None:
        """Abort the work of a server for this process."""

    def named(self, server: Server) -> str:
        """Return the label of a server's weights. Raises Stale if they belong to no run or to another one."""

    def way(self, server: Server) -> Way:
        """Return how weights reach a server. Raises InputError if it was not started with support for new weights."""

    def write(self, label: str, ways: set[Way]) -> None:
        """Put the policy's weights where servers find them, for each of these ways. Raises RunError if the disk is
        full.
        """

    def give(self, server: Server) -> float:
        """Exchange the weights of one server for those that were written, and return the result of `compared`.

        Raises:
            ServerError: the server did not take the weights, or does not sample with them.
        """

    def compared(self, server: Server) -> float:
        """Return by how many nats a server's log-probs of the canary are off. Raises Stale if that is too much."""

    def forget(self, servers: Sequence[Server]) -> None:
        """Drop outdated weights, at servers and on disk."""

    def own_servers(self) -> list[Server]:
        """Return the servers that the run has to start."""
