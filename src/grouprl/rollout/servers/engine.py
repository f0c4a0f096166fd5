"""An engine that samples with servers: requests are sent over HTTP, new weights through memory, the network or the
disk.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING

from grouprl.config.sections import Servers
from grouprl.core.errors import InputError
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.protocols import Samples
from grouprl.rollout.local.sampler import later
from grouprl.rollout.servers.dialect import Dialect
from grouprl.rollout.servers.requests import PromptRequest
from grouprl.rollout.servers.sampling import ServerSampling
from grouprl.rollout.servers.served_policy import Attachment, ServedPolicy
from grouprl.rollout.servers.server_pool import Fleet, Server
from grouprl.rollout.servers.starting import wire_to
from grouprl.rollout.servers.weight_push import Delivery

if TYPE_CHECKING:
    from grouprl.protocols import Policy

THREADS = 1024
"""Largest number of requests in progress at the same time, over all servers."""


class ServerEngine:
    """Engine that samples with servers, through the calls of `dialect`; see `grouprl.protocols.Engine`.

    Log-probs are those of the distribution that a token was sampled from: at the request's temperature and after top-k
    and top-p, if these are set. Those of greedy samples are at temperature 1. Entropies are not known.

    Args:
        served: the policy; servers get its weights at the first `publish` or sample.
        dialect: the calls of this kind of server.

    Raises:
        InputError: there is no program that starts a server.
    """

    exact = False
    takes_parts = True
    """Whether it takes the weights of a policy on several ranks as they are gathered, without a full copy."""

    def __init__(self, served: ServedPolicy, dialect: Dialect) -> None:
        self.served, self._dialect, settings = served, dialect, served.settings
        addresses = served.attachment.addresses if served.attachment else settings.addresses
        servers = [Server(wire_to(each, settings)) for each in addresses] if addresses else dialect.own_servers()
        # `say` is looked up when it is called: whoever uses the engine may set another one later.
        self.fleet = Fleet(servers, settings, dialect.health, lambda sentence: served.say(sentence))
        pool = ThreadPoolExecutor(min(THREADS, settings.at_once * len(servers)), "grouprl-servers")
        self._sampling = ServerSampling(served, dialect, self.fleet, pool)
        self._delivery = Delivery(served, dialect, self.fleet, pool)
        # Runs when the interpreter exits or nothing refers to the engine any more: own servers must not outlive it.
        self._ended = weakref.finalize(self, _end, self.fleet, pool, served.closing)
        self.fleet.start(self._delivery.bring)

    @property
    def policy(self) -> CausalPolicy:
        """The policy that is sampled from."""
        return self.served.policy

    @property
    def settings(self) -> Servers:
        """The servers' addresses, or how they are started."""
        return self.served.settings

    @property
    def run(self) -> str:
        """Name of the run in the labels of its weights, which tells them from those of other runs."""
        return self.served.run

    @property
    def version(self) -> int:
        """The version of the weights that the next samples come from; `NO_VERSION` before the first one."""
        return self.served.version

    @property
    def attachment(self) -> Attachment:
        """Data with which another process can sample with these servers."""
        return Attachment(tuple(server.wire.address for server in self.fleet.servers), self.run)

    @property
    def say(self) -> Callable[[str], None]:
        """Function that shows a message to the user."""
        return self.served.say

    @say.setter
    def say(self, say: Callable[[str], None]) -> None:
        self.served.say = say

    @property
    def gap(self) -> float:
        """Difference in nats between the canary's log-probs by servers and by the policy, at the last exchange of
        weights.
        """
        return self._delivery.gap

    @property
    def seconds(self) -> float:
        """Duration of the last exchange of weights in seconds."""
        return self._delivery.seconds

    def session(self) -> AbstractContextManager[ServerEngine]:
        """Return this engine: servers cache what they have read by themselves."""
        return nullcontext(self)

    def sample(self, requests: Sequence[PromptRequest]) -> Samples[int]:
        """Sample what `requests` ask for; if the call ends early, the servers' work for it is aborted.

        Raises:
            InputError: the servers cannot honour a request.
            RunError: no server is left, or a request failed as often as it may.
        """
        for request in requests:
            self._dialect.check(request)
        if self.served.label is None and not self.served.attached:
            self._delivery.publish(self.version)
        self._delivery.wake()
        return self._sampling.samples(requests)

    def publish(self, version: int, policy: Policy) -> None:
        """Give every server the weights of `policy` as version `version`; see `grouprl.protocols.WeightSync`.

        Raises:
            RunError: a server does not take the weights, or does not sample with them.
        """
        if self.served.attached:
            raise InputError(f"version {version} is published", "these servers get their weights from another process")
        if policy is not self.policy:
            raise InputError("another policy's weights are published", "this engine only samples from its own policy")
        self._delivery.publish(later(self.version, version))

    def rest(self) -> None:
        """Let servers free their accelerator's memory until the next weights or request, if they can.

        Raises:
            RunError: no server is left.
            ServerError: a server has no sleep mode.
        """
        self._delivery.rest()

    def metrics(self) -> dict[str, float]:
        """Return the canary's gap and the duration of the last exchange of weights."""
        return {"canary_gap": self.gap, "seconds_sync": self.seconds}

    def close(self) -> None:
        """Disconnect from the servers, and stop those that the run started."""
        self._ended()


def _end(fleet: Fleet, pool: ThreadPoolExecutor, closing: ExitStack) -> None:
    fleet.close()  # first, as it cuts the requests: an interpreter that exits waits for the threads of the pool
    pool.shutdown(wait=False, cancel_futures=True)
    closing.close()
