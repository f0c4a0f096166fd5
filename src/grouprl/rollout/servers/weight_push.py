"""New weights for servers: they are sent to all servers and compared there, and servers that do not take them are
dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from grouprl.core.errors import RunError
from grouprl.rollout.servers.dialect import Dialect, Errors
from grouprl.rollout.servers.http_client import Gone, Late, ServerError, Stale
from grouprl.rollout.servers.served_policy import ServedPolicy
from grouprl.rollout.servers.server_pool import LOOK_SECONDS, Fleet, Server
from grouprl.rollout.servers.weight_version import label_of


class NotGiven(RunError):
    """A server failed twice to take new weights; `cause` says why."""

    def __init__(self, server: Server, version: int, cause: ServerError) -> None:
        self.cause = cause
        log = f". Its log says:\n{server.own.last_words()}\n" if server.own is not None else ". "
        super().__init__(
            f"the server {server.wire.address} did not take version {version} of the weights, twice: "
            f"{cause}{log}What is on disk is intact: continue with --resume"
        )


class Delivery:
    """Transfer of a policy's weights to the servers of a fleet."""

    def __init__(self, served: ServedPolicy, dialect: Dialect, fleet: Fleet, pool: ThreadPoolExecutor) -> None:
        self._served, self._dialect, self._fleet, self._pool = served, dialect, fleet, pool
        self._weights = threading.RLock()
        """Lock that is held while weights are written or sent to servers."""
        self.gap = 0.0
        """Difference in nats between the canary's log-probs by servers and by the policy, at the last exchange of
        weights.
        """
        self.seconds = 0.0
        """Duration of the last exchange of weights in seconds."""

    def publish(self, version: int) -> None:
        """Give every server the current weights as version `version`.

        Raises:
            RunError: a server does not take the weights, or does not sample with them.
        """
        served, dialect, begun = self._served, self._dialect, time.perf_counter()
        servers = self._fleet.up()  # not under the lock, for which a server that comes up waits
        with self._weights:
            label = label_of(served.run, version)
            dialect.write(label, {dialect.way(server) for server in servers})
            served.canary.expect(served.policy)
            served.label, served.version = label, version
            together = [server for server in servers if dialect.way(server) == "broadcast"]
            futures = [self._pool.submit(self._given, server) for server in servers if server not in together]
            gaps = [future.result() for future in futures] + self._given_together(together)
            dialect.forget(servers)
        if None in gaps:
            self._fleet.up()  # a server that was replaced gets these weights as it comes up
        self.gap = max((gap for gap in gaps if gap is not None), default=self.gap)
        self.seconds = time.perf_counter() - begun

    def bring(self, server: Server) -> None:
        """Give the current weights to a server that has come up."""
        if self._served.attached:
            self._wait_for_weights(server)
            return
        with self._weights:
            if self._served.label is not None:
                self._give(server)

    def rest(self) -> None:
        """Put servers to sleep, if they can. Raises ServerError if one has no sleep mode."""
        if self._dialect.sleep is None or self._served.attached:
            return
        for server in self._fleet.up():
            try:
                self._dialect.sleep.begin(server)
            except (Gone, Late) as error:
                self._fleet.unusable(server, error)

    def wake(self) -> None:
        """Give the current weights to sleeping servers, since a request came before new weights."""
        with self._weights:
            sleep = self._dialect.sleep
            for server in [server for server in self._fleet.servers if sleep is not None and sleep.lasts(server)]:
                self._given(server)

    def _given(self, server: Server) -> float | None:
        """Exchange the weights of a server; return None if it does not answer and is replaced or set aside."""
        try:
            return self._give(server)
        except NotGiven as error:
            self._done_without(server, error.cause)
            return None

    def _done_without(self, server: Server, cause: ServerError) -> None:
        """Replace a server that does not answer, or set it aside. Raises NotGiven if the server does answer."""
        if not isinstance(cause, Gone | Late):
            raise NotGiven(server, self._served.version, cause)
        self._fleet.unusable(server, cause)

    def _give(self, server: Server) -> float:
        """Exchange the weights of one server and compare its log-probs; try once more if that fails."""
        try:
            return self._dialect.give(server)
        except ServerError as first:
            self._say_again(server, first)
            try:
                return self._dialect.give(server)
            except ServerError as second:
                raise NotGiven(server, self._served.version, second) from None

    def _given_together(self, servers: Sequence[Server]) -> list[float | None]:
        """Exchange the weights of servers that get them all at once; None for each server that is dropped.

        A silent server is not tried again, because it has delayed the others.
        """
        gaps, errors = self._tried_together(servers)
        late = [server for server, error in errors.items() if isinstance(error, Late)]
        again = [server for server in errors if server not in late]
        for server in late:
            self._done_without(server, errors[server])
        for server in again:
            self._say_again(server, errors[server])
        more, second = self._tried_together(again)
        for server, error in second.items():
            self._done_without(server, error)
        return [*gaps, *more, *[None for _ in (*late, *second)]]

    def _tried_together(self, servers: Sequence[Server]) -> tuple[list[float], Errors]:
        """Return the canary's gap at servers that took the weights, and the errors at the others."""
        if not servers:
            return [], {}
        assert self._served.label is not None
        assert self._dialect.broadcast is not None
        gaps, errors = [], self._dialect.broadcast.give(servers, self._served.label, self._served.memory)
        for server in [server for server in servers if server not in errors]:
            try:
                gaps.append(self._dialect.compared(server))
            except ServerError as error:
                errors[server] = error
        return gaps, errors

    def _say_again(self, server: Server, error: ServerError) -> None:
        self._served.say(f"the weights of {server.wire.address} are exchanged once more: {error}")

    def _wait_for_weights(self, server: Server) -> None:
        """Wait until the process that this engine is attached to has given a server its weights."""
        begun = time.monotonic()
        while True:
            try:
                self._dialect.named(server)
            except Stale as error:
                if time.monotonic() - begun > self._fleet.patience:
                    raise RunError(str(error)) from None
                time.sleep(LOOK_SECONDS)
            else:
                return
