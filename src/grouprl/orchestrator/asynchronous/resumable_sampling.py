"""Sampling while weights change: unfinished samples continue with the new weights, and each token records its
version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from grouprl.core.errors import InputError
from grouprl.orchestrator.asynchronous.sampler_canary import CanaryReport, forced_logp
from grouprl.orchestrator.asynchronous.unfinished import OpenSample, extend, gathered
from grouprl.orchestrator.asynchronous.weights import NONE, SharedWeights
from grouprl.orchestrator.weight_checksum import checksum
from grouprl.protocols import Request, RunEngine, RunSampler, Samples, SamplingSession
from grouprl.records.tokens import Tokens
from grouprl.rollout.local.sampler import LocalSampler, LocalSession


class Follower:
    """A policy that loads the newest weights from shared memory; `report` is called after each exchange, with the
    log-probs of the rows `canary` if there are any.
    """

    def __init__(
        self, policy: Any, weights: SharedWeights, report: Callable[[CanaryReport], None], canary: Tokens | None
    ) -> None:
        self.policy, self.weights, self._report = policy, weights, report
        self.version, self._canary = NONE, canary

    @property
    def outdated(self) -> bool:
        """True if shared memory holds newer weights than the policy."""
        return self.weights.latest > self.version

    def refresh(self) -> None:
        """Load the newest weights if they are newer, and check the canary."""
        if not self.outdated:
            return
        self.version, state = self.weights.read()
        self.policy.load_trainable_state(state)
        found = [] if self._canary is None else forced_logp(self.policy, self._canary).tolist()
        logp = tuple(tuple(row) for row in found)
        self._report(CanaryReport(self.version, checksum(self.policy.trainable_state()), logp))


class InFlight(LocalSampler):
    """The sampler of the sampler process; with `partial`, unfinished samples continue with new weights as soon as they
    appear.

    After an exchange of weights the keys and values of earlier tokens are recomputed, so that each token's log-prob is
    exactly that of the version that sampled it, given everything before it. The follower supplies the versions.
    Weights do not change within a session, nor in requests with stop sequences or texts (`stop`, `stop_texts`),
    because a stop sequence may span an exchange.
    """

    def __init__(self, follower: Follower, *, partial: bool) -> None:
        super().__init__(follower.policy)
        self.follower, self.partial = follower, partial

    def publish(self, version: int, policy: object) -> None:
        """Refuse: weights come from shared memory, and the follower chooses when to load them."""
        raise InputError(
            f"version {version} is published to a follower", "a follower loads its weights from shared memory"
        )

    def session(self) -> AbstractContextManager[LocalSession]:
        """Keep the weights unchanged while requests continue each other."""
        self.version = self.follower.version
        return super().session()

    def sample(self, requests: Sequence[Request[tuple[int, ...]]]) -> Samples[int]:
        """Sample what `requests` ask for; each token uses the newest weights if samples may span versions."""
        self.version = self.follower.version
        if not self.partial or any(request.stop or request.stop_texts for request in requests):
            return super().sample(requests)
        samples = [OpenSample(request) for request in requests]
        whole = self._advance(samples)
        if not any(sample.open for sample in samples):  # the first pass already holds every token
            return whole
        while going := [sample for sample in samples if sample.open]:
            self.follower.refresh()
            self.version = self.follower.version
            self._advance(going)
        return gathered(samples, whole.logp_bt.dtype, exact=whole.exact)

    def _advance(self, samples: list[OpenSample]) -> Samples[int]:
        """Continue `samples` until they end or newer weights appear; return what was sampled now."""
        part = self.sample_until([sample.rest for sample in samples], lambda unfinished: self.follower.outdated)
        extend(samples, part, self.version)
        return part


class Following:
    """Any other engine in the sampler process: it receives the follower's weights before each call and keeps them
    throughout.

    A sample therefore never spans two versions, and `run.partial` has no effect.
    """

    def __init__(self, follower: Follower, engine: RunEngine) -> None:
        self.follower, self.engine = follower, engine

    @property
    def exact(self) -> bool:
        """True if the engine's log-probs are exact, by its own account."""
        return self.engine.exact

    def sample(self, requests: Sequence[Request[object]]) -> Samples[object]:
        """Sample what `requests` ask for with the follower's weights."""
        self._bring()
        return self.engine.sample(requests)

    def session(self) -> AbstractContextManager[SamplingSession[object, object]]:
        """Open a session of the engine with the follower's weights."""
        self._bring()
        return self.engine.session()

    def _bring(self) -> None:
        if self.engine.version != self.follower.version:
            self.engine.publish(self.follower.version, self.follower.policy)


def following(follower: Follower, engine: RunEngine, *, partial: bool) -> RunSampler:
    """Return the sampler of the sampler process that samples by `engine` with the follower's weights.

    Only the sampler of language models can let unfinished samples continue with new weights (`partial`).
    """
    own = type(engine) is LocalSampler  # an engine derived from it samples in its own way
    return InFlight(follower, partial=partial) if own else Following(follower, engine)
