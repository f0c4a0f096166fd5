"""The engine `sglang`: what differs from the engine `vllm` in how servers of SGLang are asked and given weights.

How requests are spread, sent again and given up, how new weights are brought to all servers and compared, and who is
replaced or set aside, is the same for both.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from grouprl.config.sections import Sglang, Vllm
from grouprl.core.errors import InputError
from grouprl.protocols import Request
from grouprl.rollout.sglang.exchange import Abilities, abilities, exchange, way_to, weights_of
from grouprl.rollout.sglang.process import serve_words, server_environment
from grouprl.rollout.sglang.replies import read_completion, read_scores
from grouprl.rollout.sglang.requests import GENERATE, completion_body, kept_tokens, scoring_body
from grouprl.rollout.vllm.engine import Attachment, Prompt, VllmEngine
from grouprl.rollout.vllm.exchange import Way
from grouprl.rollout.vllm.fleet import Server
from grouprl.rollout.vllm.http_client import ServerError
from grouprl.rollout.vllm.process import OwnServer, free_port, program, wire_to, write_description
from grouprl.rollout.vllm.replies import Sampled

DEFAULT = Sglang()
SHARED = (
    *("addresses", "servers", "env", "key_env", "folder", "canary"),
    *("at_once", "timeout", "start_timeout", "tries", "restarts"),
)
"""Settings that mean the same for servers of vLLM."""
GIVEN_UP_SECONDS = 2.0
"""Within which a server takes note that a completion is not waited for."""


class SglangEngine(VllmEngine):
    """Samples with servers of SGLang; see `grouprl.protocols.Engine`.

    Log-probs are those of the distribution that a token was sampled from: at the request's temperature and, where there
    are any, after top-k and top-p. Those of greedy samples are at temperature 1. No entropies are known.

    Args:
        policy: a `CausalPolicy`; its weights are those of the servers from the first `publish` or sample on.
        sglang: where servers are, or how they are started.
        attachment: servers of another process's engine, which gives them their weights.

    Raises:
        InputError: a policy that SGLang does not serve, or no program to start.
    """

    name, kind, health = "sglang", "SGLang", "/model_info"
    """`/health` samples a token, and so tells a server that is paused from one that is up."""

    def __init__(self, policy: object, sglang: Sglang = DEFAULT, *, attachment: Attachment | None = None) -> None:
        self.sglang = sglang
        self._abilities: dict[Server, Abilities] = {}
        self._waited_for: dict[str, Server] = {}
        self._names = threading.Lock()
        super().__init__(policy, Vllm(**{key: getattr(sglang, key) for key in SHARED}), attachment=attachment)

    @classmethod
    def attach(cls, policy: object, attachment: Attachment, sglang: Sglang = DEFAULT) -> SglangEngine:  # type: ignore[override]
        """Return an engine that samples with the servers of another one, which gives them their weights."""
        return cls(policy, sglang, attachment=attachment)

    # ------------------------------------------------------------------------------------------------ samples

    def _check(self, request: Request[Prompt]) -> None:
        super()._check(request)
        if wrong := [token for token in request.prompt if not 0 <= token < self.vocabulary]:
            raise InputError(
                f"the prompt's token {wrong[0]}", f"the model has {self.vocabulary} tokens, and a server ends at others"
            )

    def _sampled_by(self, server: Server, request: Request[Prompt]) -> Sampled:
        """Return the completion that a server samples, which goes on where it stops at an end token that is none here.

        Its random numbers belong to the seed and the position, so what is sampled in pieces is what is sampled at once.
        """
        found = Sampled((), (), (), False)
        while not found.ended and len(found.ids) < request.budget:
            more = self._piece(server, request, found.ids)
            found = Sampled(found.ids + more.ids, found.logp + more.logp, found.labels + more.labels, more.ended)
        return found

    def _piece(self, server: Server, request: Request[Prompt], before: Prompt) -> Sampled:
        ends, budget = self._ends(request), request.budget - len(before)
        cuts = request.top_k > 0 or request.top_p < 1
        kept = kept_tokens(request, self.vocabulary, self._able(server).most) if cuts else 0
        ids = (*request.prompt, *before)
        with self._waiting(server) as name:
            body = completion_body(
                request, ids=ids, budget=budget, ends=ends, kept=kept, vocabulary=self.vocabulary, name=name
            )
            reply = server.wire.request(GENERATE, body, self.settings.timeout)
        return read_completion(
            reply, budget=budget, vocabulary=self.vocabulary, ends=ends, texts=request.stop_texts, cut=kept > 0
        )

    @contextmanager
    def _waiting(self, server: Server) -> Iterator[str]:
        """Yield a name for a request, by which it can be given up."""
        name = uuid.uuid4().hex
        with self._names:
            self._waited_for[name] = server
        try:
            yield name
        finally:
            with self._names:
                del self._waited_for[name]

    def _give_up(self, server: Server) -> None:
        with self._names:
            names = [name for name, at in self._waited_for.items() if at is server]
        with suppress(ServerError):  # a server that does not answer notices the closed connection, or is gone
            for name in names:
                server.wire.call("/abort_request", {"rid": name}, GIVEN_UP_SECONDS)
        super()._give_up(server)

    # ------------------------------------------------------------------------------------------------ weights

    def _named(self, server: Server) -> str:
        return weights_of(server.wire, self.run)

    def _able(self, server: Server) -> Abilities:
        if server not in self._abilities:
            self._abilities[server] = abilities(server.wire)
        return self._abilities[server]

    def _way(self, server: Server) -> Way:
        return way_to(server.wire.address, self._able(server), self.sglang.weights)

    def _tried(self, server: Server) -> float:
        assert self._label is not None
        exchange(
            server.wire,
            self._label,
            run=self.run,
            seconds=self.settings.timeout,
            memory=self._memory.written if self._way(server) == "shared_memory" else None,
            folder=self._disk(),
            ranks=self._able(server).ranks,
        )
        return self._canary.check(self._scored(server))

    def _scored(self, server: Server) -> list[list[float]]:
        replies = (server.wire.request(GENERATE, scoring_body(row), self.settings.timeout) for row in self._canary.rows)
        return [read_scores(reply, row, self.vocabulary) for reply, row in zip(replies, self._canary.rows, strict=True)]

    def _own_servers(self) -> list[Server]:
        folder, settings = self._folder.path / "model", self.sglang
        program(settings.command, self.name, self.kind)
        write_description(self.policy, folder)
        environment, servers = server_environment(settings), []
        for number in range(settings.servers):
            port = free_port() if settings.port is None else settings.port + number
            words = serve_words(settings, self.policy, folder, port, self.vocabulary)
            servers.append(Server(wire_to(f"http://127.0.0.1:{port}", settings), OwnServer(words, environment)))
        return servers
