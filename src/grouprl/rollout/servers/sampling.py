"""Completions by servers: requests are spread over them, sent again if they fail, and given up together."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

from grouprl.core.errors import InputError, RunError
from grouprl.protocols import NO_VERSION, Samples
from grouprl.rollout.servers.dialect import Dialect
from grouprl.rollout.servers.http_client import Dropped, Refused, ServerError, Stale
from grouprl.rollout.servers.replies import Sampled
from grouprl.rollout.servers.requests import PromptRequest
from grouprl.rollout.servers.served_policy import ServedPolicy
from grouprl.rollout.servers.server_pool import LOOK_SECONDS, Fleet
from grouprl.rollout.servers.stop_sequences import sequence_end, text_ends


class ServerSampling:
    """Sampler of a policy with the servers of a fleet."""

    def __init__(self, served: ServedPolicy, dialect: Dialect, fleet: Fleet, pool: ThreadPoolExecutor) -> None:
        self._served, self._dialect, self._fleet, self._pool = served, dialect, fleet, pool
        self._round = 0

    def samples(self, requests: Sequence[PromptRequest]) -> Samples[int]:
        """Sample what `requests` ask for; if the call ends early, the servers' work for it is aborted.

        Raises:
            InputError: a server says that a request is wrong.
            RunError: no server is left, or a request failed as often as it may.
        """
        round_ = self._round
        futures = [self._pool.submit(self._completed, request, round_) for request in requests]
        try:
            found = [future.result() for future in futures]
        except BaseException:
            self._abandon(futures)
            raise
        return self._as_samples(self._cut(requests, found))

    def _abandon(self, futures: Sequence[Future[Sampled]]) -> None:
        """Give up requests: those not yet sent are dropped, and for the others the connections are closed so that
        servers notice.
        """
        self._round += 1
        left = {future for future in futures if not future.cancel()}
        while left:
            for server in self._fleet.servers:
                self._dialect.give_up(server)
            left = wait(left, LOOK_SECONDS).not_done

    def _completed(self, request: PromptRequest, round_: int) -> Sampled:
        """Return one completion; a request that fails is sent again, with the same seed, to any free server."""
        errors: list[ServerError] = []
        while len(errors) < self._fleet.tries:
            server = self._fleet.acquire()
            error: ServerError | None = None
            try:
                found = self._dialect.sampled_by(server, request)
                self._check_labels(found)
            except ServerError as caught:
                error = caught
            finally:
                self._fleet.release(server, well=error is None or isinstance(error, Dropped))
            if error is None:
                return found
            if round_ != self._round:
                raise RunError("the request was given up")
            if isinstance(error, Refused):
                raise InputError(str(error), error.rule, error.remedy)
            errors.append(error)
            if isinstance(error, Stale):
                self._fleet.outdated(server)
            else:
                self._fleet.failed(server, error)
        raise RunError(
            f"a request failed {len(errors)} times; the last time: {errors[-1]}. "
            "What is on disk is intact: continue with --resume"
        )

    def _check_labels(self, found: Sampled) -> None:
        """Raise Stale if a token was sampled with weights of another run or another version."""
        served = self._served
        for label in dict.fromkeys(found.labels):
            if served.version_of(label) != served.version and not served.attached:
                raise Stale(f"tokens were sampled with the weights {label!r}, the server was given {served.label!r}")

    def _cut(self, requests: Sequence[PromptRequest], found: Sequence[Sampled]) -> list[Sampled]:
        """Truncate completions after the first sequence or text that ends them, wherever the server stopped."""
        return [
            sampled if end is None else Sampled(sampled.ids[:end], sampled.logp[:end], sampled.labels[:end], True)
            for sampled, end in zip(found, self._ended_by_stops(requests, found), strict=True)
        ]

    def _ended_by_stops(self, requests: Sequence[PromptRequest], found: Sequence[Sampled]) -> list[int | None]:
        ends = [sequence_end(sampled.ids, request.stop) for request, sampled in zip(requests, found, strict=True)]
        by_texts: dict[tuple[str, ...], list[int]] = {}
        for i, request in enumerate(requests):
            if request.stop_texts:
                by_texts.setdefault(request.stop_texts, []).append(i)
        for texts, rows in by_texts.items():
            by_text = text_ends(self._served.policy, texts, [found[i].ids for i in rows])
            for i, end in zip(rows, by_text, strict=True):
                ends[i] = min((each for each in (ends[i], end) if each is not None), default=None)
        return ends

    def _as_samples(self, found: Sequence[Sampled]) -> Samples[int]:
        served, width = self._served, max((len(sampled.ids) for sampled in found), default=0)
        logp_bt = np.zeros((len(found), width), dtype=np.float32)
        version_bt = np.full(logp_bt.shape, NO_VERSION, dtype=np.int64)
        for row, sampled in enumerate(found):
            count = len(sampled.ids)
            logp_bt[row, :count] = np.minimum(sampled.logp, 0.0)
            version_bt[row, :count] = [served.version_of(x) for x in sampled.labels] or [served.version] * count
        known = bool((version_bt != NO_VERSION).any())
        return Samples(
            actions=tuple(sampled.ids for sampled in found),
            logp_bt=logp_bt,
            truncated_b=np.array([not sampled.ended for sampled in found], dtype=bool),
            exact=False,
            version_bt=version_bt if known else None,
        )
