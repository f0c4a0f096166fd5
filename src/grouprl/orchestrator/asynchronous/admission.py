"""Admission control: a limit on the prompts in flight, which bounds the staleness of training data."""

from __future__ import annotations

from dataclasses import dataclass

from grouprl.core.errors import InputError


@dataclass
class Admission:
    """AReaL's admission control (arXiv:2505.24298, section 5.1), counted in prompts.

    A prompt may be requested while accepted + running < (bound + version + 1)·batch. Each step trains on `batch`
    prompts in the order of their requests, so a prompt admitted at version v is trained on at version v + bound at the
    latest. A rejected prompt leaves `running` without being accepted, which makes room for another.
    """

    bound: int
    """The largest allowed number of versions between sampling and training; 0: none."""
    batch: int
    """The number of prompts per step."""
    version: int = 0
    """The number of steps that the policy has been trained for."""
    accepted: int = 0
    """The number of prompts accepted for training since the run began."""
    running: int = 0
    """The number of prompts that are requested but neither accepted nor rejected yet."""

    @classmethod
    def resumed(cls, bound: int, batch: int, version: int) -> Admission:
        """Return the state after `version` whole steps with nothing in flight: room for (bound + 1)·batch prompts."""
        return cls(bound, batch, version, accepted=version * batch)

    @property
    def capacity(self) -> int:
        """The number of prompts that may be requested now."""
        return max(0, (self.bound + self.version + 1) * self.batch - (self.accepted + self.running))

    @property
    def queue_position(self) -> int:
        """The position in the queue of the next prompt requested: those accepted in this step plus those running."""
        return self.accepted - self.version * self.batch + self.running

    def admit(self, count: int) -> None:
        """Record that `count` prompts are requested. Raises InputError if this exceeds the capacity."""
        if count > self.capacity:
            raise InputError(
                f"{count} prompts are requested with room for {self.capacity}", "more would exceed the staleness bound"
            )
        self.running += count

    def miss(self, count: int) -> None:
        """Record that this step still needs `count` prompts, and that the rest of its batch is accepted."""
        self.accepted = (self.version + 1) * self.batch - count

    def settle(self, count: int) -> None:
        """Record `count` running prompts as accepted; `miss` takes back those that are rejected later."""
        self.running -= count
        self.accepted += count

    def advance(self) -> None:
        """Record the end of a step. Places of prompts that it lacked count as accepted: those prompts are gone."""
        self.version += 1
        # Without this the places of prompts that never came back would add up, and later ones could be older than
        # `bound`: the rule counts from the version, not from what was trained on.
        self.accepted = max(self.accepted, self.version * self.batch)
