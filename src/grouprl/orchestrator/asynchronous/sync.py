"""The trainer's side of an exchange of weights: `grouprl.protocols.WeightSync` over shared memory."""

from __future__ import annotations

from grouprl.orchestrator.asynchronous.sampler_canary import Canary, CanaryReport
from grouprl.orchestrator.asynchronous.weights import SharedWeights
from grouprl.protocols import Policy, distributed
from grouprl.records.tokens import Tokens
from grouprl.rollout.local.sampler import later


class SharedMemorySync:
    """A publisher of weights for processes on this machine, which checks their reports on each version.

    Args:
        policy: the policy in training; its weights determine how much memory is reserved.
        remembered: how many of the latest versions a report may refer to.
        canary: fixed rows whose log-probs are compared; None: only the weights are.
    """

    def __init__(self, policy: Policy, remembered: int, canary: Tokens | None) -> None:
        self.remembered = remembered
        # Of a policy in one process all that training changes: statistics of observations are not parameters.
        state = policy.trainable_state() if distributed(policy) is None else dict(policy.named_parameters())
        self._weights, self._canary = SharedWeights.create(state), Canary(policy, canary)

    @property
    def version(self) -> int:
        """The newest version; `NO_VERSION` before the first."""
        return self._weights.latest

    @property
    def memory(self) -> int:
        """The descriptor of the memory, which sampling processes inherit."""
        return self._weights.fd

    def hello(self) -> dict[str, object]:
        """Return the information that a sampling process needs to read the memory."""
        return {"places": self._weights.places}

    def publish(self, version: int, policy: Policy) -> None:
        """Publish the current weights as version `version`; see `grouprl.protocols.WeightSync`."""
        number = later(self.version, version)
        if (spread := distributed(policy)) is not None:
            checksum = self._weights.publish_each(number, spread.each_weight())
        else:
            checksum = self._weights.publish(number, policy.trainable_state())
        self._canary.expect(version, checksum, keep=self.remembered)

    def check(self, report: CanaryReport) -> float:
        """Return the largest gap between a sampler's log-probs and the trainer's, in nats; see `Canary.check`."""
        return self._canary.check(report)

    def close(self) -> None:
        """Release the memory."""
        self._weights.close()
