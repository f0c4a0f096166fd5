"""Sampling on all ranks: each completes its shares of the requests with its full copy of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grouprl.policy.devices import exact_in, name_of
from grouprl.protocols import Samples, SamplingSession
from grouprl.rollout.local.sampler import LocalSampler, LocalSession
from grouprl.rollout.sharded.request_shards import Prompt, Share, SharedSession, ShareSampler

if TYPE_CHECKING:
    from grouprl.policy.sharded.ranks import Station
    from grouprl.policy.sharded.sharded_policy import ShardedPolicy

SAMPLER, SESSIONS = "sampler", "sampling sessions"
"""Names under which a rank keeps the sampler of its full copy, and its open sessions by number and share."""


@dataclass(frozen=True)
class RankRequests:
    """One rank's shares by number, the number of their session (None: no session), and the version of the weights."""

    shares: Mapping[int, Share]
    session: int | None
    version: int


class RankSampler(ShareSampler):
    """An `Engine` over the ranks of a sharded policy. A sample is a function of its request, whichever rank takes it.

    Requests are dealt into `shares`, at least as many as there are ranks, and the shares in turn to the ranks.
    """

    def __init__(self, policy: ShardedPolicy, shares: int = 1) -> None:
        super().__init__(policy, max(shares, policy.ranks.count))
        self.sharded = policy

    @property
    def exact(self) -> bool:
        """True if the log-probs are the trainer's: both compute in full precision."""
        return exact_copies(self.sharded)

    def take_weights(self) -> None:
        """Update the full copies of the weights."""
        self.sharded.copy_everywhere()

    def complete(self, shares: Mapping[int, Share], session: SharedSession | None) -> Mapping[int, Samples[int]]:
        """Return the samples of each share."""
        self.sharded.copy_everywhere()
        number = None if session is None else session.number
        dealt: list[dict[int, Share]] = [{} for _ in range(self.sharded.ranks.count)]
        for share, requests in shares.items():
            dealt[share % len(dealt)][share] = requests
        given = [RankRequests(own, number, self.version) for own in dealt]
        found: dict[int, Samples[int]] = {}
        for each in self.sharded.ranks.call(_sample, given):
            found |= each
        return found

    def close_session(self, session: SharedSession) -> None:
        """Let every rank release its caches of a session."""
        self.sharded.ranks.each(_close, session.number)


def exact_copies(policy: ShardedPolicy) -> bool:
    """Return whether a full copy of the policy samples with the log-probs of its training passes."""
    return policy.precision != "mixed" and exact_in(name_of(policy.dtype))


def _sample(station: Station, given: RankRequests) -> dict[int, Samples[int]]:
    sampler = _sampler(station)
    sampler.version = given.version
    return {share: _source(station, given.session, share).sample(own) for share, own in given.shares.items()}


def _source(station: Station, session: int | None, share: int) -> SamplingSession[Prompt, int]:
    """Return the sampler of a share: the rank's own, or its session, which opens with the first requests."""
    sampler = _sampler(station)
    if session is None:
        return sampler
    opened: dict[int, LocalSession] = station.kept.setdefault(SESSIONS, {}).setdefault(session, {})
    if share not in opened:
        opened[share] = LocalSession(sampler)
    return opened[share]


def _sampler(station: Station) -> LocalSampler:
    if SAMPLER not in station.kept:
        station.kept[SAMPLER] = LocalSampler(station.kept["whole"])
    found: LocalSampler = station.kept[SAMPLER]
    return found


def _close(station: Station, number: int) -> None:
    for session in station.kept.get(SESSIONS, {}).pop(number, {}).values():
        session.close()
