"""Sampling on all ranks: each completes its share of the requests with its whole copy of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.protocols import NO_VERSION, Request, Samples, SamplingSession
from grouprl.rollout.request_shards import deal_requests, merge_samples
from grouprl.rollout.sampler import LocalSampler, LocalSession, later

if TYPE_CHECKING:
    from grouprl.policy.ranks import Station
    from grouprl.policy.sharded import ShardedPolicy
    from grouprl.protocols import Policy

SAMPLER, SESSIONS = "sampler", "sampling sessions"
"""What a rank keeps: what samples from its whole copy, and the open sessions by number."""
Prompt = tuple[int, ...]


@dataclass(frozen=True)
class RankRequests:
    """One rank's requests, of the session of this number (None: of none), and the version of the weights."""

    requests: Sequence[Request[Prompt]]
    session: int | None
    version: int


class RankSampler:
    """An `Engine` over the ranks of a sharded policy. A sample is a function of its request, wherever it is taken."""

    def __init__(self, policy: ShardedPolicy) -> None:
        self.policy, self.version, self._opened = policy, NO_VERSION, 0

    @property
    def exact(self) -> bool:
        """Whether the log-probs are the trainer's: both compute in full precision."""
        return self.policy.precision != "mixed" and LocalSampler(self.policy.ranks.station.kept["whole"]).exact

    def publish(self, version: int, policy: Policy) -> None:
        """Bring the whole copies up to date, and let them be version `version`."""
        if policy is not self.policy:
            raise InputError("another policy's weights are published", "this sampler samples from its own policy")
        self.version = later(self.version, version)
        self.policy.refresh()

    def sample(self, requests: Sequence[Request[Prompt]]) -> Samples[int]:
        """Sample what `requests` ask for; see `grouprl.protocols.Sampler`."""
        return self._sample(requests, None, deal_requests(requests, self.policy.ranks.count))

    @contextmanager
    def session(self) -> Iterator[RankSession]:
        """Let requests of one name continue each other, on the rank that began them."""
        self._opened += 1
        session = RankSession(self, self._opened)
        self.policy.ranks.each(_open, session.number)
        try:
            yield session
        finally:
            self.policy.ranks.each(_close, session.number)

    def _sample(self, requests: Sequence[Request[Prompt]], session: int | None, dealt: list[list[int]]) -> Samples[int]:
        self.policy.refresh()
        shares = [RankRequests([requests[i] for i in own], session, self.version) for own in dealt]
        found = self.policy.ranks.call(_sample, shares)
        return merge_samples(
            [(own, part) for own, part in zip(dealt, found, strict=True) if part is not None], len(requests), self.exact
        )


class RankSession:
    """A session on all ranks; a name stays on the rank that sampled it first."""

    def __init__(self, sampler: RankSampler, number: int) -> None:
        self.number, self._sampler = number, sampler
        self._rank_of: dict[object, int] = {}

    def sample(self, requests: Sequence[Request[Prompt]]) -> Samples[int]:
        """Sample what `requests` ask for; what is known of their names is not read again."""
        count = self._sampler.policy.ranks.count
        new = [i for i, request in enumerate(requests) if request.name not in self._rank_of or request.name is None]
        dealt: list[list[int]] = [[] for _ in range(count)]
        for rank, own in enumerate(deal_requests([requests[i] for i in new], count)):
            for i in own:
                dealt[rank].append(new[i])
                if requests[new[i]].name is not None:
                    self._rank_of[requests[new[i]].name] = rank
        for i in sorted(set(range(len(requests))) - set(new)):
            dealt[self._rank_of[requests[i].name]].append(i)
        return self._sampler._sample(requests, self.number, dealt)


def _sample(station: Station, share: RankRequests) -> Samples[int] | None:
    if not share.requests:
        return None
    sampler = _sampler(station)
    sampler.version = share.version
    source: SamplingSession[Prompt, int] = sampler if share.session is None else station.kept[SESSIONS][share.session]
    found: Samples[int] = source.sample(share.requests)
    return found


def _sampler(station: Station) -> LocalSampler:
    if SAMPLER not in station.kept:
        station.kept[SAMPLER] = LocalSampler(station.kept["whole"])
    found: LocalSampler = station.kept[SAMPLER]
    return found


def _open(station: Station, number: int) -> None:
    station.kept.setdefault(SESSIONS, {})[number] = LocalSession(_sampler(station))


def _close(station: Station, number: int) -> None:
    station.kept[SESSIONS].pop(number).close()
