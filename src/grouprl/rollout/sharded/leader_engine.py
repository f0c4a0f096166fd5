"""Engines that sample outside of the ranks of a sharded policy: they run only on rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.protocols import Request, RunEngine, Samples, SamplingSession

if TYPE_CHECKING:
    from grouprl.policy.sharded.sharded_policy import ShardedPolicy
    from grouprl.protocols import Policy

Prompt = tuple[int, ...]


class LeaderEngine:
    """An engine for a full policy, on rank 0, which gets rank 0's full copy of the weights; the others have none.

    Args:
        policy: the policy on all ranks.
        make: function that makes the engine of a full policy.
    """

    def __init__(self, policy: ShardedPolicy, make: Callable[[object], RunEngine]) -> None:
        self.policy = policy
        self.engine = make(policy.whole)

    @property
    def exact(self) -> bool:
        """True if the log-probs are the trainer's: the engine says so, and both compute in full precision."""
        return self.engine.exact and self.policy.precision != "mixed"

    @property
    def version(self) -> int:
        """The version of the weights that the engine samples with."""
        return self.engine.version

    def publish(self, version: int, policy: Policy) -> None:
        """Update rank 0's copy and publish it to the engine as version `version`."""
        if policy is not self.policy:
            raise InputError("another policy's weights are published", "this engine only samples from its own policy")
        self.engine.publish(version, self.policy.whole)

    def sample(self, requests: Sequence[Request[Prompt]]) -> Samples[int]:
        """Sample what `requests` ask for; see `grouprl.protocols.Sampler`."""
        return self.engine.sample(requests)

    def session(self) -> AbstractContextManager[SamplingSession[Prompt, int]]:
        """Return a session of the engine."""
        return self.engine.session()

    @property
    def say(self) -> Callable[[str], None]:
        """Function with which the engine shows messages to the user, if it has any."""
        found: Callable[[str], None] = self.engine.say  # type: ignore[attr-defined]
        return found

    @say.setter
    def say(self, say: Callable[[str], None]) -> None:
        self.engine.say = say  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        """Return any other attribute of the engine (`close`, `metrics`)."""
        return getattr(self.engine, name)
