"""The calls of SGLang's servers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from grouprl.config.sections import Sglang
from grouprl.core.errors import InputError
from grouprl.rollout.servers.dialect import Way
from grouprl.rollout.servers.http_client import ServerError
from grouprl.rollout.servers.replies import Sampled
from grouprl.rollout.servers.requests import Prompt, PromptRequest, check_request
from grouprl.rollout.servers.served_policy import ServedPolicy
from grouprl.rollout.servers.server_pool import Server
from grouprl.rollout.servers.starting import own_servers, write_description
from grouprl.rollout.sglang.exchange import Abilities, abilities, exchange, named, way_to
from grouprl.rollout.sglang.replies import read_completion, read_scores
from grouprl.rollout.sglang.requests import GENERATE, completion_body, kept_tokens, scoring_body
from grouprl.rollout.sglang.start_server import serve_words, server_environment

GIVEN_UP_SECONDS = 2.0
"""Time in seconds for a server to note that a completion is no longer needed."""


class SglangDialect:
    """The calls of SGLang's servers; see `grouprl.rollout.servers.dialect.Dialect`."""

    health = "/model_info"
    """Path for checks; `/health` would sample a token, which a paused server cannot do."""
    broadcast = sleep = None

    def __init__(self, served: ServedPolicy, settings: Sglang) -> None:
        self._served, self._settings = served, settings
        self._abilities: dict[Server, Abilities] = {}
        self._waited_for: dict[str, Server] = {}
        self._names = threading.Lock()

    def check(self, request: PromptRequest) -> None:
        """Raise InputError for a request that these servers cannot honour."""
        check_request(request)
        vocabulary = self._served.vocabulary
        if wrong := [token for token in request.prompt if not 0 <= token < vocabulary]:
            raise InputError(
                f"the prompt's token {wrong[0]}", f"the model has {vocabulary} tokens, and other ids end a server"
            )

    def sampled_by(self, server: Server, request: PromptRequest) -> Sampled:
        """Return the completion that a server samples; if it stops at an end token that is not one of the policy's,
        continue it.

        Its random numbers belong to the seed and the position, so a completion sampled in pieces equals one sampled at
        once.
        """
        found = Sampled((), (), (), False)
        while not found.ended and len(found.ids) < request.budget:
            more = self._piece(server, request, found.ids)
            found = Sampled(found.ids + more.ids, found.logp + more.logp, found.labels + more.labels, more.ended)
        return found

    def give_up(self, server: Server) -> None:
        """Abort the work of a server for this process."""
        with self._names:
            names = [name for name, at in self._waited_for.items() if at is server]
        with suppress(ServerError):  # a server that does not answer notices the closed connection, or is gone
            for name in names:
                server.wire.call("/abort_request", {"rid": name}, GIVEN_UP_SECONDS)
        server.wire.cut()

    def named(self, server: Server) -> str:
        """Return the label of a server's weights. Raises Stale if they belong to no run or to another one."""
        return named(server.wire, self._served.run)

    def way(self, server: Server) -> Way:
        """Return how weights reach a server. Raises InputError if it was not started with support for new weights."""
        return way_to(server.wire.address, self._able(server), self._settings.weights)

    def write(self, label: str, ways: set[Way]) -> None:
        """Put the policy's weights where servers find them. Raises RunError if the disk is full."""
        self._served.write(to_disk="disk" in ways)

    def give(self, server: Server) -> float:
        """Exchange the weights of one server for those that were written, and return the result of `compared`.

        Raises:
            ServerError: the server did not take the weights, or does not sample with them.
        """
        served = self._served
        assert served.label is not None
        exchange(
            server.wire,
            served.label,
            run=served.run,
            seconds=self._settings.timeout,
            memory=served.memory.written if self.way(server) == "shared_memory" else None,
            folder=str(served.disk),
            ranks=self._able(server).ranks,
        )
        return self.compared(server)

    def compared(self, server: Server) -> float:
        """Return by how many nats a server's log-probs of the canary are off. Raises Stale if that is too much."""
        canary, seconds = self._served.canary, self._settings.timeout
        replies = ((server.wire.request(GENERATE, scoring_body(row), seconds), row) for row in canary.rows)
        return canary.check([read_scores(reply, row, self._served.vocabulary) for reply, row in replies])

    def forget(self, servers: Sequence[Server]) -> None:
        """Do nothing: new weights replace the previous ones."""

    def own_servers(self) -> list[Server]:
        """Return the servers that the run has to start."""
        settings, served, folder = self._settings, self._served, self._served.folder.path / "model"
        write_description(served.policy, folder)
        return own_servers(
            settings,
            server_environment(settings),
            lambda port: serve_words(settings, served.policy, folder, port, served.vocabulary),
            served.policy.device,
        )

    def _able(self, server: Server) -> Abilities:
        if server not in self._abilities:
            self._abilities[server] = abilities(server.wire)
        return self._abilities[server]

    def _piece(self, server: Server, request: PromptRequest, before: Prompt) -> Sampled:
        ends, budget, vocabulary = self._served.ends(request), request.budget - len(before), self._served.vocabulary
        cuts = request.top_k > 0 or request.top_p < 1
        kept = kept_tokens(request, vocabulary, self._able(server).most) if cuts else 0
        ids = (*request.prompt, *before)
        with self._waiting(server) as name:
            body = completion_body(
                request, ids=ids, budget=budget, ends=ends, kept=kept, vocabulary=vocabulary, name=name
            )
            reply = server.wire.request(GENERATE, body, self._settings.timeout)
        return read_completion(
            reply, budget=budget, vocabulary=vocabulary, ends=ends, texts=request.stop_texts, cut=kept > 0
        )

    @contextmanager
    def _waiting(self, server: Server) -> Iterator[str]:
        """Yield a name for a request, by which it can be aborted."""
        name = uuid.uuid4().hex
        with self._names:
            self._waited_for[name] = server
        try:
            yield name
        finally:
            with self._names:
                del self._waited_for[name]
