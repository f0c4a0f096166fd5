"""Sampling in shares: the requests of a call are divided by tokens, and each share is completed separately.

A completion is a function of its request, so it does not matter which process completes a share. The shares themselves
depend only on the requests and the number of shares: a share gives the same samples wherever and whenever it is
completed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.policy.sharded.row_split import split_over_ranks
from grouprl.protocols import NO_VERSION, Request, Samples, SamplingSession
from grouprl.rollout.local.sampler import LocalSampler, later

if TYPE_CHECKING:
    from grouprl.protocols import Policy

Prompt = tuple[int, ...]
Share = Sequence[Request[Prompt]]


@dataclass
class SharedSession:
    """A session in shares: a request goes to the share of the previous request with its name."""

    number: int
    sampler: ShareSampler
    share_of: dict[object, int] = field(default_factory=dict)
    batches: dict[int, list[Share]] = field(default_factory=dict)
    """The batches requested so far of each share, in order, with which another process can take the share over."""

    def sample(self, requests: Sequence[Request[Prompt]]) -> Samples[int]:
        """Sample what `requests` ask for; tokens that are cached under their names are not read again."""
        count = self.sampler.count
        new = [i for i, request in enumerate(requests) if request.name is None or request.name not in self.share_of]
        dealt: list[list[int]] = [[] for _ in range(count)]
        for share, own in enumerate(deal_requests([requests[i] for i in new], count)):
            for i in own:
                dealt[share].append(new[i])
                if requests[new[i]].name is not None:
                    self.share_of[requests[new[i]].name] = share
        for i in sorted(set(range(len(requests))) - set(new)):
            dealt[self.share_of[requests[i].name]].append(i)
        return self.sampler.sample_dealt(requests, dealt, self)


class ShareSampler(ABC):
    """An `Engine` whose requests are completed in `count` shares; see `grouprl.protocols`."""

    def __init__(self, policy: Policy, count: int) -> None:
        self.policy, self.count, self.version, self._opened = policy, count, NO_VERSION, 0

    @property
    def exact(self) -> bool:
        """True if the log-probs are the trainer's: all samplers compute in full precision."""
        return LocalSampler(self.policy).exact

    def publish(self, version: int, policy: object) -> None:
        """Publish the current weights as version `version`."""
        if policy is not self.policy:
            raise InputError("another policy's weights are published", "this sampler only samples from its own policy")
        self.version = later(self.version, version)
        self.take_weights()

    def sample(self, requests: Sequence[Request[Prompt]]) -> Samples[int]:
        """Sample what `requests` ask for; see `grouprl.protocols.Sampler`."""
        return self.sample_dealt(requests, deal_requests(requests, self.count), None)

    @contextmanager
    def session(self) -> Iterator[SharedSession]:
        """Open a session in which requests with the same name continue each other, within their share."""
        self._opened += 1
        session = SharedSession(self._opened, self)
        try:
            yield session
        finally:
            self.close_session(session)

    def sample_dealt(
        self, requests: Sequence[Request[Prompt]], dealt: Sequence[list[int]], session: SharedSession | None
    ) -> Samples[int]:
        """Complete the rows of each share, in the order of `requests`."""
        shares = {number: [requests[i] for i in own] for number, own in enumerate(dealt) if own}
        if session is not None:
            for number, share in shares.items():
                session.batches.setdefault(number, []).append(share)
        found = self.complete(shares, session)
        parts = [(own, found[number]) for number, own in enumerate(dealt) if own]
        return merge_samples(parts, len(requests), all(part.exact for _, part in parts) and self.exact)

    @abstractmethod
    def complete(self, shares: Mapping[int, Share], session: SharedSession | None) -> Mapping[int, Samples[int]]:
        """Return the samples of each share by its number; for a session, those of its newest batch."""

    @abstractmethod
    def take_weights(self) -> None:
        """Use the policy's current weights for the shares from now on."""

    @abstractmethod
    def close_session(self, session: SharedSession) -> None:
        """Release the caches of a session."""


class SharesHere(ShareSampler):
    """Sampler that completes all shares in this process, one after the other, with the results of several samplers."""

    def __init__(self, policy: Policy, count: int) -> None:
        super().__init__(policy, count)
        self.local = LocalSampler(policy)
        self._open: dict[int, tuple[ExitStack, dict[int, SamplingSession[Prompt, int]]]] = {}

    def complete(self, shares: Mapping[int, Share], session: SharedSession | None) -> Mapping[int, Samples[int]]:
        """Return the samples of each share."""
        if session is None:
            return {number: self.local.sample(share) for number, share in shares.items()}
        stack, sessions = self._open.setdefault(session.number, (ExitStack(), {}))
        for number in shares:
            if number not in sessions:
                sessions[number] = stack.enter_context(self.local.session())
        return {number: sessions[number].sample(share) for number, share in shares.items()}

    def take_weights(self) -> None:
        """Note the version: the weights are the policy's own."""
        self.local.version = self.version

    def close_session(self, session: SharedSession) -> None:
        """Release the keys and values of each share."""
        if session.number in self._open:
            self._open.pop(session.number)[0].close()


def deal_requests(requests: Sequence[Request[Prompt]], shares: int) -> list[list[int]]:
    """Return the rows of each share, balanced by tokens, with requests of one prompt together."""
    prompts = [request.prompt for request in requests]
    return split_over_ranks(prompts, list(map(len, prompts)), [request.budget for request in requests], shares)


def merge_samples(parts: Sequence[tuple[list[int], Samples[int]]], count: int, exact: bool) -> Samples[int]:
    """Return the samples of several shares, each with its rows, in the order of the `count` requests."""
    actions: list[tuple[int, ...]] = [()] * count
    for rows, part in parts:
        for row, own in zip(rows, part.actions, strict=True):
            actions[row] = own
    width = max(map(len, actions), default=0)
    return Samples(
        actions=tuple(actions),
        logp_bt=_laid_out(parts, "logp_bt", (count, width), 0.0),
        truncated_b=_laid_out(parts, "truncated_b", (count,), False),
        exact=exact,
        entropy_bt=_known(parts, "entropy_bt", (count, width), 0.0),
        version_bt=_known(parts, "version_bt", (count, width), NO_VERSION),
    )


def _known(
    parts: Sequence[tuple[list[int], Samples[int]]], name: str, shape: tuple[int, ...], beyond: float
) -> np.ndarray | None:
    """Return one array of all shares' samples; None if they do not have it."""
    unknown = any(getattr(part, name) is None for _, part in parts)
    return None if unknown else _laid_out(parts, name, shape, beyond)


def _laid_out(
    parts: Sequence[tuple[list[int], Samples[int]]], name: str, shape: tuple[int, ...], beyond: float
) -> np.ndarray:
    """Return one array of all shares' samples."""
    arrays = [getattr(part, name) for _, part in parts]
    found = np.full(shape, beyond, dtype=arrays[0].dtype if arrays else np.float32)
    for (rows, _), array in zip(parts, arrays, strict=True):
        if array.ndim == 1:
            found[rows] = array
        else:
            found[rows, : array.shape[1]] = array
    return found
