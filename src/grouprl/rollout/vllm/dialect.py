"""The calls of vLLM's servers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from grouprl.config.sections import Vllm
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.rollout.servers.dialect import Way
from grouprl.rollout.servers.http_client import Refused, ServerError, Stale
from grouprl.rollout.servers.replies import Sampled
from grouprl.rollout.servers.requests import PromptRequest, check_request
from grouprl.rollout.servers.served_policy import ServedPolicy
from grouprl.rollout.servers.server_pool import Server
from grouprl.rollout.servers.starting import own_servers, write_description
from grouprl.rollout.vllm.adapters import (
    AdapterFolders,
    adapter_rank,
    known_adapter,
    load_adapter,
    unload_adapter,
    write_base,
)
from grouprl.rollout.vllm.broadcast import Broadcast
from grouprl.rollout.vllm.exchange import exchange, named, way_of
from grouprl.rollout.vllm.replies import read_prompt_logp, read_sampled
from grouprl.rollout.vllm.requests import GENERATE, completion_body, scoring_body
from grouprl.rollout.vllm.sleep import SleepMode
from grouprl.rollout.vllm.start_server import NO_SLEEP, serve_words, server_environment


class VllmDialect:
    """The calls of vLLM's servers; see `grouprl.rollout.servers.dialect.Dialect`."""

    health = "/health"

    def __init__(self, served: ServedPolicy, settings: Vllm) -> None:
        self._served, self._settings = served, settings
        self._ways: dict[Server, Way] = {}
        self.sleep = SleepMode(settings.timeout) if settings.sleep else None
        self.broadcast = Broadcast(settings, served.run, served.policy.device, lambda sentence: served.say(sentence))
        self._rank = 0 if settings.adapters == "merged" else adapter_rank(served.policy)
        self._adapters = AdapterFolders(served.disk)
        served.closing.callback(self._adapters.close)
        served.closing.callback(self.broadcast.close)

    def check(self, request: PromptRequest) -> None:
        """Raise InputError for a request that these servers cannot honour."""
        check_request(request)

    def sampled_by(self, server: Server, request: PromptRequest) -> Sampled:
        """Return the completion that a server samples."""
        adapter, ends = self._adapter_at(server), self._served.ends(request)
        reply = self._generated(server, completion_body(request, ends), adapter)
        found = read_sampled(reply, budget=request.budget, vocabulary=self._served.vocabulary, ends=ends)
        if adapter is None:
            return found
        return replace(found, labels=(adapter,) * len(found.ids))  # the server labels the weights below

    def give_up(self, server: Server) -> None:
        """Abort the work of a server for this process, by closing its connections."""
        server.wire.cut()

    def named(self, server: Server) -> str:
        """Return the label of a server's weights. Raises Stale if they belong to no run or to another one."""
        return named(server.wire, self._served.run)

    def way(self, server: Server) -> Way:
        """Return how weights reach a server. Raises InputError if it was not started with support for new weights."""
        if self._rank:
            return "adapters"
        if server.own is not None:
            return "broadcast" if self._settings.weights == "broadcast" else "shared_memory"
        if server not in self._ways:
            self._ways[server] = way_of(server.wire, self._settings.weights)
        return self._ways[server]

    def write(self, label: str, ways: set[Way]) -> None:
        """Put the policy's weights, or its adapters, where servers find them. Raises RunError if the disk is full."""
        if self._rank:
            self._adapters.write(self._served.policy, label)
        else:
            self._served.write(to_disk="disk" in ways)

    def give(self, server: Server) -> float:
        """Exchange the weights of one server for those that were written, and return the result of `compared`.

        Raises:
            ServerError: the server did not take the weights, or does not sample with them.
        """
        way = self.way(server)
        if way == "adapters":
            return self._load_adapters(server)
        if way == "broadcast":
            for error in self.broadcast.give([server], self._label, self._served.memory).values():
                raise error
        else:
            self._exchange(server, way)
        return self.compared(server)

    def compared(self, server: Server) -> float:
        """Return by how many nats a server's log-probs of the canary are off. Raises Stale if that is too much."""
        adapter, canary = self._label if self._rank else None, self._served.canary
        replies = ((self._generated(server, scoring_body(row), adapter), row) for row in canary.rows)
        return canary.check([read_prompt_logp(reply, row) for reply, row in replies])

    def forget(self, servers: Sequence[Server]) -> None:
        """Drop outdated adapters, at servers and on disk."""
        for label in self._adapters.outdated:
            for server in servers:
                with suppress(ServerError):  # the next request will notice a server that does not answer
                    unload_adapter(server.wire, label, self._settings.timeout)
        self._adapters.forget()

    def own_servers(self) -> list[Server]:
        """Return the servers that the run has to start."""
        settings, policy, rank = self._settings, self._served.policy, self._rank
        if settings.sleep and policy.device.type == "cpu":
            raise InputError("sampling.vllm.sleep", NO_SLEEP)
        folder = self._served.folder.path / "model"
        write_description(policy, folder)
        if rank:
            write_base(policy, folder)
        environment = server_environment(settings, policy.device)
        words = lambda port: serve_words(settings, policy, folder, port, rank)  # noqa: E731
        return own_servers(settings, environment, words, policy.device)

    @property
    def _label(self) -> str:
        assert self._served.label is not None
        return self._served.label

    def _adapter_at(self, server: Server) -> str | None:
        """Return the name of the adapters to sample with; None if they are merged."""
        if not self._rank:
            return None
        return self.named(server) if self._served.attached else self._served.label

    def _generated(self, server: Server, body: JsonObject, adapter: str | None) -> object:
        """Return a server's reply. Raises Stale if the server has lost the adapters."""
        sent = body if adapter is None else {**body, "model": adapter}
        try:
            return server.wire.request(GENERATE, sent, self._settings.timeout)
        except Refused as error:
            raise _meant(error, adapter) from None

    def _load_adapters(self, server: Server) -> float:
        seconds = self._settings.timeout
        load_adapter(server.wire, self._label, self._adapters.path(self._label), seconds)
        gap = self.compared(server)
        # A request for the newest version is answered by a version that has been compared.
        server.wire.post("/update_weight_version", {"new_version": self._label}, seconds)
        return gap

    def _exchange(self, server: Server, way: Way) -> None:
        exchange(
            server.wire,
            self._label,
            run=self._served.run,
            in_flight=self._settings.in_flight,
            seconds=self._settings.timeout,
            memory=self._served.memory.written if way == "shared_memory" else None,
            folder=str(self._served.disk),
            asleep=self.sleep is not None and self.sleep.lasts(server),
        )
        if self.sleep is not None:
            self.sleep.ended(server)


def _meant(error: Refused, adapter: str | None) -> Stale | Refused:
    """Return the meaning of a refusal: Stale if adapters are lost, else the refusal, with a remedy if one is known."""
    found = error if adapter is None else known_adapter(error, adapter)
    if isinstance(found, Stale) or found.status not in (403, 404):
        return found
    rule, remedy = "this call takes and returns tokens", "Start the server with --enable-scale-out"
    return Refused(found.status, str(found), rule, remedy)
