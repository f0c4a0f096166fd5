"""Sampling on all ranks: each completes its shares of the requests with its full copy of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from grouprl.policy.devices import exact_in, name_of
from grouprl.policy.language.blended_policy import BlendedPolicy, Mean
from grouprl.policy.sharded.guide_work import WHOLE_REFERENCE
from grouprl.policy.sharded.rank_work import POLICY, WHOLE
from grouprl.policy.sharded.sharded_reference import ShardedActor
from grouprl.protocols import Samples, SamplingSession
from grouprl.rollout.local.sampler import LocalSampler, LocalSession
from grouprl.rollout.sharded.request_shards import Prompt, Share, SharedSession, ShareSampler

if TYPE_CHECKING:
    from grouprl.policy.sharded.ranks import Station
    from grouprl.policy.sharded.sharded_policy import ShardedPolicy
    from grouprl.protocols import Policy

SAMPLER, SESSIONS = "sampler", "sampling sessions"
"""Names under which a rank keeps the sampler of its full copy, and its open sessions by number and share."""


@dataclass(frozen=True)
class ActingCopies:
    """The full copies that a rank samples from: one of the policy, one of a reference beside it, or a mixture."""

    whole: str = POLICY
    """The model whose weights the first one has: the policy, or a copy of it, a reference."""
    share: float = 0.0
    """The part of the second one."""
    mean: Mean = "geometric"


OpenSession = tuple[int, ActingCopies]
"""Key of a rank's open session: samplers of the policy and of its reference use the same numbers."""


@dataclass(frozen=True)
class RankRequests:
    """One rank's shares by number, the number of their session (None: no session), and the version of the weights."""

    shares: Mapping[int, Share]
    session: int | None
    version: int
    acting: ActingCopies = ActingCopies()


class RankSampler(ShareSampler):
    """An `Engine` over the ranks of a sharded policy. A sample is a function of its request, whichever rank takes it.

    Requests are dealt into `shares`, at least as many as there are ranks, and the shares in turn to the ranks.

    Args:
        policy: the policy, its reference, or a mixture of both.
        shares: the smallest number of shares.
    """

    def __init__(self, policy: ShardedPolicy | ShardedActor | BlendedPolicy, shares: int = 1) -> None:
        self.sharded, self.reference, self.acting = _acting(policy)
        self._beside = False
        """Whether the copy of the reference beside that of the policy has its weights."""
        super().__init__(cast("Policy", policy), max(shares, self.sharded.ranks.count))

    @property
    def exact(self) -> bool:
        """True if the log-probs are the trainer's: both compute in full precision."""
        return exact_copies(self.sharded)

    def take_weights(self) -> None:
        """Update the full copies of the weights."""
        if self.acting.share < 1:
            self.sharded.copy_everywhere(self.acting.whole)
        if self.reference is not None and not self._beside:
            self.reference.copy_beside()
            self._beside = True

    def complete(self, shares: Mapping[int, Share], session: SharedSession | None) -> Mapping[int, Samples[int]]:
        """Return the samples of each share."""
        self.take_weights()
        number = None if session is None else session.number
        dealt: list[dict[int, Share]] = [{} for _ in range(self.sharded.ranks.count)]
        for share, requests in shares.items():
            dealt[share % len(dealt)][share] = requests
        given = [RankRequests(own, number, self.version, self.acting) for own in dealt]
        found: dict[int, Samples[int]] = {}
        for each in self.sharded.ranks.call(_sample, given):
            found |= each
        return found

    def close_session(self, session: SharedSession) -> None:
        """Let every rank release its caches of a session."""
        self.sharded.ranks.each(_close, (session.number, self.acting))


def _acting(
    policy: ShardedPolicy | ShardedActor | BlendedPolicy,
) -> tuple[ShardedPolicy, ShardedActor | None, ActingCopies]:
    """Return the policy on the ranks, the reference of which each needs a full copy of its own, and what samples.

    A reference that is a copy of the policy, and acts alone, takes the memory of the policy's full copy meanwhile.
    """
    if isinstance(policy, BlendedPolicy):
        second = cast("ShardedActor", policy.second)
        return cast("ShardedPolicy", policy.first), second, ActingCopies(share=policy.share, mean=policy.mean)
    if isinstance(policy, ShardedActor):
        sharded = cast("ShardedPolicy", policy.policy)
        return (
            (sharded, None, ActingCopies(policy.name)) if policy.alike else (sharded, policy, ActingCopies(share=1.0))
        )
    return policy, None, ActingCopies()


def exact_copies(policy: ShardedPolicy) -> bool:
    """Return whether a full copy of the policy samples with the log-probs of its training passes."""
    return policy.precision != "mixed" and exact_in(name_of(policy.dtype))


def _sample(station: Station, given: RankRequests) -> dict[int, Samples[int]]:
    sampler = _sampler(station, given.acting)
    sampler.version = given.version
    return {share: _source(station, sampler, given, share).sample(own) for share, own in given.shares.items()}


def _source(station: Station, sampler: LocalSampler, given: RankRequests, share: int) -> SamplingSession[Prompt, int]:
    """Return the sampler of a share: the rank's own, or its session, which opens with the first requests."""
    if given.session is None:
        return sampler
    every: dict[OpenSession, dict[int, LocalSession]] = station.kept.setdefault(SESSIONS, {})
    opened = every.setdefault((given.session, given.acting), {})
    if share not in opened:
        opened[share] = LocalSession(sampler)
    return opened[share]


def _sampler(station: Station, acting: ActingCopies) -> LocalSampler:
    """Return the rank's sampler of its full copy, or of what acts in its place."""
    if acting.share == 1:
        return LocalSampler(station.kept[WHOLE_REFERENCE])
    if acting.share > 0:
        blend = BlendedPolicy(station.kept[WHOLE], station.kept[WHOLE_REFERENCE], acting.share, acting.mean)
        return LocalSampler(cast("Policy", blend))
    found: LocalSampler | None = station.kept.get(SAMPLER)
    # A rank outlives policies: the next one's full copy is another object, and the old sampler would keep the old one.
    if found is None or found.policy is not station.kept[WHOLE]:
        found = station.kept[SAMPLER] = LocalSampler(station.kept[WHOLE])
    return found


def _close(station: Station, session: OpenSession) -> None:
    for each in station.kept.get(SESSIONS, {}).pop(session, {}).values():
        each.close()
