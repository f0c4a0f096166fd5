"""The engine `vllm`: requests go to servers over HTTP, new weights through memory or from disk."""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grouprl.config.sections import Vllm
from grouprl.core.errors import InputError, RunError
from grouprl.policy.causal_lm import CausalPolicy
from grouprl.protocols import NO_VERSION, Request, Samples
from grouprl.rollout.sampler import later
from grouprl.rollout.vllm.adapters import (
    AdapterFolders,
    adapter_rank,
    known_adapter,
    load_adapter,
    unload_adapter,
    write_base,
)
from grouprl.rollout.vllm.broadcast import Broadcast
from grouprl.rollout.vllm.canary import ServerCanary
from grouprl.rollout.vllm.exchange import Way, exchange, go_to_sleep, label_of, named, version_of, way_of
from grouprl.rollout.vllm.fleet import LOOK_SECONDS, Fleet, Server
from grouprl.rollout.vllm.folder import ServerFolder
from grouprl.rollout.vllm.http_client import Dropped, Gone, Late, Refused, ServerError, Stale
from grouprl.rollout.vllm.process import (
    NO_SLEEP,
    OwnServer,
    free_port,
    serve_words,
    server_environment,
    wire_to,
    write_description,
)
from grouprl.rollout.vllm.replies import Sampled, read_prompt_logp, read_sampled
from grouprl.rollout.vllm.stop_sequences import sequence_end, text_ends
from grouprl.rollout.vllm.weights import WeightMemory
from grouprl.storage.run_folder import in_words

if TYPE_CHECKING:
    from grouprl.protocols import Policy

GENERATE = "/inference/v1/generate"
THREADS = 1024
"""Requests that are waited for at the same time, over all servers."""
DEFAULT = Vllm()
Prompt = tuple[int, ...]


@dataclass(frozen=True)
class Attachment:
    """What another process must know to sample with the servers of a run."""

    addresses: tuple[str, ...]
    run: str


class NotGiven(RunError):
    """A server did not take new weights, twice; `cause` says why."""

    def __init__(self, server: Server, version: int, cause: ServerError) -> None:
        self.cause = cause
        log = f". Its log says:\n{server.own.last_words()}\n" if server.own is not None else ". "
        super().__init__(
            f"the server {server.wire.address} did not take version {version} of the weights, twice: "
            f"{cause}{log}What is on disk is whole: continue with --resume"
        )


class VllmEngine:
    """Samples with servers of vLLM; see `grouprl.protocols.Engine`.

    Log-probs are those of the distribution that a token was sampled from: at the request's temperature and, where there
    are any, after top-k and top-p. Those of greedy samples are at temperature 1. No entropies are known.

    Args:
        policy: a `CausalPolicy`; its weights are those of the servers from the first `publish` or sample on.
        vllm: where servers are, or how they are started.
        attachment: servers of another process's engine, which gives them their weights.

    Raises:
        InputError: a policy that vLLM does not serve, or no program to start.
    """

    exact = False
    name, kind, health = "vllm", "vLLM", "/health"
    """What the engine is called, whose servers it uses, and what one that is up answers."""

    def __init__(self, policy: object, vllm: Vllm = DEFAULT, *, attachment: Attachment | None = None) -> None:
        if not isinstance(policy, CausalPolicy):
            raise InputError(
                f"the engine {self.name} with a policy that is {type(policy).__name__}",
                "it samples from one language model",
                "Take the engine local",
            )
        self.policy, self.settings, self.attached = policy, vllm, attachment is not None
        self.version = NO_VERSION
        self.run = attachment.run if attachment else uuid.uuid4().hex
        self.vocabulary = int(policy.model.config.get_text_config().vocab_size)
        self.gap = 0.0
        """Nats between the canary's log-probs by servers and by the policy, at the last exchange of weights."""
        self.seconds = 0.0
        """How long that took."""
        self._memory, self._canary = WeightMemory(), ServerCanary(policy, vllm.canary)
        self._label: str | None = None
        self._weights = threading.RLock()
        """Held while weights are written or brought to servers."""
        self._folder = ServerFolder()
        self._ways: dict[Server, Way] = {}
        self._asleep: dict[Server, int] = {}
        """Servers that sleep, and how often each had been replaced then: a new one is awake."""
        self._broadcast = Broadcast(vllm, self.run, policy.device, lambda sentence: self.say(sentence))
        self._rank = 0 if vllm.adapters == "merged" else adapter_rank(policy)
        self._adapters = AdapterFolders(Path(vllm.folder or self._folder.path).absolute())
        self._round = 0
        addresses = attachment.addresses if attachment else vllm.addresses
        servers = [Server(wire_to(each, vllm)) for each in addresses] if addresses else self._own_servers()
        self.fleet = Fleet(
            servers,
            self._bring,
            restarts=vllm.restarts,
            at_once=vllm.at_once,
            patience=vllm.start_timeout,
            tries=vllm.tries,
            health=self.health,
            kind=self.kind,
        )
        self._pool = ThreadPoolExecutor(min(THREADS, vllm.at_once * len(servers)), "grouprl-vllm")
        self._ended = weakref.finalize(
            self,
            _end,
            self.fleet,
            self._pool,
            self._broadcast.close,
            self._memory.close,
            self._adapters.close,
            self._folder.remove,
        )
        self.fleet.start()

    @classmethod
    def attach(cls, policy: object, attachment: Attachment, vllm: Vllm = DEFAULT) -> VllmEngine:
        """Return an engine that samples with the servers of another one, which gives them their weights."""
        return cls(policy, vllm, attachment=attachment)

    @property
    def attachment(self) -> Attachment:
        """What another process must know to sample with these servers."""
        return Attachment(tuple(server.wire.address for server in self.fleet.servers), self.run)

    @property
    def say(self) -> Callable[[str], None]:
        """Shows a sentence to the user."""
        return self.fleet.say

    @say.setter
    def say(self, say: Callable[[str], None]) -> None:
        self.fleet.say = say

    # ------------------------------------------------------------------------------------------------ samples

    def session(self) -> AbstractContextManager[VllmEngine]:
        """Servers keep what they have read by themselves: there is nothing to hold."""
        return nullcontext(self)

    def sample(self, requests: Sequence[Request[Prompt]]) -> Samples[int]:
        """Sample what `requests` ask for; whatever ends this call early ends the work of the servers for it.

        Raises:
            InputError: a request that servers cannot honour.
            RunError: no server is left, or a request failed as often as it may.
        """
        for request in requests:
            self._check(request)
        if self._label is None and not self.attached:
            self._publish(self.version, self.policy)
        self._wake()
        round_ = self._round
        futures = [self._pool.submit(self._completed, request, round_) for request in requests]
        try:
            found = [future.result() for future in futures]
        except BaseException:
            self._abandon(futures)
            raise
        return self._as_samples(self._cut(requests, found))

    def _abandon(self, futures: Sequence[Future[Sampled]]) -> None:
        """Give up requests: those not sent are not, and servers notice that nobody waits for the others."""
        self._round += 1
        left = {future for future in futures if not future.cancel()}
        while left:
            for server in self.fleet.servers:
                self._give_up(server)
            left = wait(left, LOOK_SECONDS).not_done

    def _give_up(self, server: Server) -> None:
        server.wire.cut()

    def _completed(self, request: Request[Prompt], round_: int) -> Sampled:
        """Return one completion; a request that fails is sent again, with the same seed, to whoever is free."""
        errors: list[ServerError] = []
        while len(errors) < self.settings.tries:
            server = self.fleet.acquire()
            error: ServerError | None = None
            try:
                found = self._sampled_by(server, request)
                self._check_labels(found)
            except ServerError as caught:
                error = caught
            finally:
                self.fleet.release(server, well=error is None or isinstance(error, Dropped))
            if error is None:
                return found
            if round_ != self._round:
                raise RunError("the request was given up")
            if isinstance(error, Refused):
                raise _impossible(error)
            errors.append(error)
            if isinstance(error, Stale):
                self.fleet.outdated(server)
            else:
                self.fleet.failed(server, error)
        raise RunError(
            f"a request failed {len(errors)} times; the last time: {errors[-1]}. "
            "What is on disk is whole: continue with --resume"
        )

    def _sampled_by(self, server: Server, request: Request[Prompt]) -> Sampled:
        """Return the completion that a server samples."""
        adapter, ends = self._adapter_at(server), self._ends(request)
        reply = self._generated(server, self._body(request), adapter)
        found = read_sampled(reply, budget=request.budget, vocabulary=self.vocabulary, ends=ends)
        if adapter is None:
            return found
        return replace(found, labels=(adapter,) * len(found.ids))  # what the server names is below the adapters

    def _adapter_at(self, server: Server) -> str | None:
        """Return the name of the adapters to sample with; None where they are merged."""
        if not self._rank:
            return None
        return self._named(server) if self.attached else self._label

    def _named(self, server: Server) -> str:
        """Return what a server calls its weights; raises Stale for those of no or another run."""
        return named(server.wire, self.run)

    def _generated(self, server: Server, body: Mapping[str, object], adapter: str | None) -> object:
        """Return a server's reply; one that has lost the adapters is stale."""
        if adapter is None:
            return server.wire.request(GENERATE, body, self.settings.timeout)
        try:
            return server.wire.request(GENERATE, {**body, "model": adapter}, self.settings.timeout)
        except Refused as error:
            raise known_adapter(error, adapter) from None

    def _body(self, request: Request[Prompt]) -> dict[str, object]:
        settings: dict[str, object] = {
            "n": 1,
            "max_tokens": request.budget,
            "temperature": 0.0 if request.greedy else request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "seed": request.seed % 2**63,
            "logprobs": 0,
            "ignore_eos": True,  # which tokens end a completion is the policy's to say
            "stop_token_ids": sorted(self._ends(request)),
            "skip_special_tokens": False,
            "detokenize": bool(request.stop_texts),
        }
        if request.stop_texts:
            settings["stop"] = list(request.stop_texts)
        return {"token_ids": list(request.prompt), "sampling_params": settings}

    def _check(self, request: Request[Prompt]) -> None:
        """Raise InputError for a request that servers cannot honour."""
        _check(request)

    def _ends(self, request: Request[Prompt]) -> frozenset[int]:
        """Tokens that end a completion by themselves."""
        return frozenset(self.policy.eos_ids) | {stop[0] for stop in request.stop if len(stop) == 1}

    def _check_labels(self, found: Sampled) -> None:
        """Raise Stale where a token comes from weights that are none of this run, or not of now."""
        for label in dict.fromkeys(found.labels):
            if self._version(label) != self.version and not self.attached:
                raise Stale(f"tokens were sampled with the weights {label!r}, the server was given {self._label!r}")

    def _version(self, label: str) -> int:
        """Return the version that a label names; raises Stale for one of another run."""
        version = version_of(label, self.run)
        if version is None:
            raise Stale(f"tokens were sampled with the weights {label!r}, which are none of this run")
        return version

    def _cut(self, requests: Sequence[Request[Prompt]], found: Sequence[Sampled]) -> list[Sampled]:
        """Cut completions behind the first sequence or text that ends them, wherever the server stopped."""
        return [
            sampled if end is None else Sampled(sampled.ids[:end], sampled.logp[:end], sampled.labels[:end], True)
            for sampled, end in zip(found, self._ended_by_stops(requests, found), strict=True)
        ]

    def _ended_by_stops(self, requests: Sequence[Request[Prompt]], found: Sequence[Sampled]) -> list[int | None]:
        ends = [sequence_end(sampled.ids, request.stop) for request, sampled in zip(requests, found, strict=True)]
        by_texts: dict[tuple[str, ...], list[int]] = {}
        for i, request in enumerate(requests):
            if request.stop_texts:
                by_texts.setdefault(request.stop_texts, []).append(i)
        for texts, rows in by_texts.items():
            for i, end in zip(rows, text_ends(self.policy, texts, [found[i].ids for i in rows]), strict=True):
                ends[i] = min((each for each in (ends[i], end) if each is not None), default=None)
        return ends

    def _as_samples(self, found: Sequence[Sampled]) -> Samples[int]:
        width = max((len(sampled.ids) for sampled in found), default=0)
        logp_bt = np.zeros((len(found), width), dtype=np.float32)
        version_bt = np.full(logp_bt.shape, NO_VERSION, dtype=np.int64)
        for row, sampled in enumerate(found):
            count = len(sampled.ids)
            logp_bt[row, :count] = np.minimum(sampled.logp, 0.0)
            version_bt[row, :count] = [self._version(label) for label in sampled.labels] or [self.version] * count
        known = bool((version_bt != NO_VERSION).any())
        return Samples(
            actions=tuple(sampled.ids for sampled in found),
            logp_bt=logp_bt,
            truncated_b=np.array([not sampled.ended for sampled in found], dtype=bool),
            exact=False,
            version_bt=version_bt if known else None,
        )

    # ------------------------------------------------------------------------------------------------ weights

    def publish(self, version: int, policy: Policy) -> None:
        """Give every server the weights of `policy` as version `version`; see `grouprl.protocols.WeightSync`.

        Raises:
            RunError: a server does not take them, or does not sample with them.
        """
        if self.attached:
            raise InputError(f"version {version} is published", "these servers get their weights from another process")
        if policy is not self.policy:
            raise InputError("another policy's weights are published", "this engine samples from its own policy")
        self._publish(later(self.version, version), self.policy)

    def rest(self) -> None:
        """Have servers free their accelerator's memory until the next weights or request (`sampling.vllm.sleep`).

        Raises:
            RunError: no server is left.
            ServerError: a server has no sleep mode.
        """
        if self.attached or not self.settings.sleep:
            return
        for server in self.fleet.up():
            try:
                go_to_sleep(server.wire, self.settings.timeout)
            except (Gone, Late) as error:
                self.fleet.unusable(server, error)
            else:
                self._asleep[server] = server.restarts

    def _wake(self) -> None:
        """Give the weights of now to servers that sleep: a request has come before new ones."""
        with self._weights:
            for server in [server for server in self.fleet.servers if self._sleeps(server)]:
                self._given(server)

    def _sleeps(self, server: Server) -> bool:
        return self._asleep.get(server) == server.restarts

    def metrics(self) -> dict[str, float]:
        """Return the canary's gap, and the seconds that the last exchange of weights took."""
        return {"canary_gap": self.gap, "seconds_sync": self.seconds}

    def close(self) -> None:
        """Leave the servers, and end those of the run's own."""
        self._ended()

    def _publish(self, version: int, policy: CausalPolicy) -> None:
        begun = time.perf_counter()
        servers = self.fleet.up()  # not under the lock, which whoever comes up waits for
        with self._weights:
            label = label_of(self.run, version)
            self._write(policy, label, {self._way(server) for server in servers})
            self._canary.expect(policy)
            self._label, self.version = label, version
            together = [server for server in servers if self._way(server) == "broadcast"]
            futures = [self._pool.submit(self._given, server) for server in servers if server not in together]
            gaps = [future.result() for future in futures] + self._given_together(together)
            self._forget(servers)
        if None in gaps:
            self.fleet.up()  # who is replaced gets these weights as it comes up
        self.gap = max((gap for gap in gaps if gap is not None), default=self.gap)
        self.seconds = time.perf_counter() - begun

    def _write(self, policy: CausalPolicy, label: str, ways: set[Way]) -> None:
        """Put new weights where servers find them, on every way that one of them takes.

        Raises:
            RunError: the disk is full, or the folder cannot be written to.
        """
        if self._rank:
            self._adapters.write(policy, label)
            return
        self._memory.write(policy)
        if "disk" in ways:
            with in_words(Path(self._disk())):
                policy.save(self._disk())

    def _forget(self, servers: Sequence[Server]) -> None:
        """Drop the adapters of long ago, at servers and on disk."""
        for label in self._adapters.outdated:
            for server in servers:
                with suppress(ServerError):  # who does not answer will be noticed by the next request
                    unload_adapter(server.wire, label, self.settings.timeout)
        self._adapters.forget()

    def _bring(self, server: Server) -> None:
        """Give a server that has come up the weights of now."""
        if self.attached:
            self._wait_for_weights(server)
            return
        with self._weights:
            if self._label is not None:
                self._give(server)

    def _given(self, server: Server) -> float | None:
        """Exchange the weights of a server; None where it is replaced or set aside, since it does not answer."""
        try:
            return self._give(server)
        except NotGiven as error:
            self._done_without(server, error.cause)
            return None

    def _done_without(self, server: Server, cause: ServerError) -> None:
        """Replace a server that does not answer, or set it aside; raises NotGiven for one that does."""
        if not isinstance(cause, Gone | Late):
            raise NotGiven(server, self.version, cause)
        self.fleet.unusable(server, cause)

    def _given_together(self, servers: Sequence[Server]) -> list[float | None]:
        """Exchange the weights of servers that all get them at once; None for each that is done without.

        One that was silent is not waited for again: it has held up the others.
        """
        gaps, errors = self._tried_together(servers)
        late = [server for server, error in errors.items() if isinstance(error, Late)]
        again = [server for server in errors if server not in late]
        for server in late:
            self._done_without(server, errors[server])
        for server in again:
            self.say(f"the weights of {server.wire.address} are exchanged once more: {errors[server]}")
        more, second = self._tried_together(again)
        for server, error in second.items():
            self._done_without(server, error)
        return [*gaps, *more, *[None for _ in (*late, *second)]]

    def _tried_together(self, servers: Sequence[Server]) -> tuple[list[float], dict[Server, ServerError]]:
        """Return the canary's gap at servers that took the weights, and what went wrong at the others."""
        assert self._label is not None
        if not servers:
            return [], {}
        gaps, errors = [], self._broadcast.give(servers, self._label, self._memory)
        for server in [server for server in servers if server not in errors]:
            try:
                gaps.append(self._canary.check(self._scored(server)))
            except ServerError as error:
                errors[server] = error
        return gaps, errors

    def _give(self, server: Server) -> float:
        """Exchange the weights of one server, and compare what it says then; once more where that fails."""
        try:
            return self._tried(server)
        except ServerError as first:
            self.say(f"the weights of {server.wire.address} are exchanged once more: {first}")
            try:
                return self._tried(server)
            except ServerError as second:
                raise NotGiven(server, self.version, second) from None

    def _tried(self, server: Server) -> float:
        assert self._label is not None
        seconds, way = self.settings.timeout, self._way(server)
        if way == "adapters":
            load_adapter(server.wire, self._label, self._adapters.path(self._label), seconds)
        elif way == "broadcast":
            for error in self._broadcast.give([server], self._label, self._memory).values():
                raise error
        else:
            exchange(
                server.wire,
                self._label,
                run=self.run,
                in_flight=self.settings.in_flight,
                seconds=seconds,
                memory=self._memory.written if way == "shared_memory" else None,
                folder=self._disk(),
                asleep=self._sleeps(server),
            )
            self._asleep.pop(server, None)
        gap = self._canary.check(self._scored(server))
        if way == "adapters":  # who asks for the newest version gets one that has been compared
            server.wire.post("/update_weight_version", {"new_version": self._label}, seconds)
        return gap

    def _scored(self, server: Server) -> list[list[float]]:
        """Return what a server says of the canary's sequences."""
        settings = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        found = []
        for row in self._canary.rows:
            body = {"token_ids": list(row), "sampling_params": settings}
            found.append(read_prompt_logp(self._generated(server, body, self._label if self._rank else None), row))
        return found

    def _wait_for_weights(self, server: Server) -> None:
        """Wait until the process that this engine is attached to has given a server its weights."""
        begun = time.monotonic()
        while True:
            try:
                self._named(server)
            except Stale as error:
                if time.monotonic() - begun > self.settings.start_timeout:
                    raise RunError(str(error)) from None
                time.sleep(LOOK_SECONDS)
            else:
                return

    def _way(self, server: Server) -> Way:
        if self._rank:
            return "adapters"
        if server.own is not None:
            return "broadcast" if self.settings.weights == "broadcast" else "shared_memory"
        if server not in self._ways:
            self._ways[server] = way_of(server.wire, self.settings.weights)
        return self._ways[server]

    def _disk(self) -> str:
        """The folder that servers read weights from."""
        return str(Path(self.settings.folder or self._folder.path).absolute())

    def _own_servers(self) -> list[Server]:
        if self.settings.sleep and self.policy.device.type == "cpu":
            raise InputError("sampling.vllm.sleep", NO_SLEEP)
        folder = self._folder.path / "model"
        write_description(self.policy, folder)
        if self._rank:
            write_base(self.policy, folder)
        environment, servers = server_environment(self.settings, self.policy.device), []
        for number in range(self.settings.servers):
            port = free_port() if self.settings.port is None else self.settings.port + number
            words = serve_words(self.settings, self.policy, folder, port, self._rank)
            wire = wire_to(f"http://127.0.0.1:{port}", self.settings)
            servers.append(Server(wire, OwnServer(words, environment)))
        return servers


def _check(request: Request[Prompt]) -> None:
    if request.entropy_scaling is not None:
        raise InputError(
            "a temperature that follows the entropy", "servers sample at one temperature", "Take the engine local"
        )
    if request.grammar is not None:
        raise InputError("a grammar", "these servers are not told what a sample may be", "Take the engine local")
    if request.sampled:
        raise InputError(
            f"a sample that goes on behind {request.sampled} tokens of its own",
            "a server's random numbers begin with the request",
            "Request it as a whole",
        )
    if not request.prompt:
        raise InputError("A prompt has no tokens", "A prompt needs at least one", "Begin it with bos")


def _impossible(error: Refused) -> InputError:
    if error.status in (403, 404) and GENERATE in str(error):
        return InputError(str(error), "tokens go in and out by this call", "Start the server with --enable-scale-out")
    return InputError(str(error))


def _end(fleet: Fleet, pool: ThreadPoolExecutor, *closes: Callable[[], None]) -> None:
    fleet.close()
    pool.shutdown(wait=False, cancel_futures=True)
    for close in closes:
        close()
