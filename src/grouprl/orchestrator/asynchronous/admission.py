"""Admission control: how many prompts may be in flight, which bounds the staleness of what is trained on."""

from __future__ import annotations

from dataclasses import dataclass

from grouprl.core.errors import InputError


@dataclass
class Admission:
    """AReaL's admission control (arXiv:2505.24298, section 5.1), counted in prompts.

    A prompt may be requested while accepted + running < (bound + version + 1)·batch. Prompts are trained on in the
    order in which they were requested, `batch` a step, so one that is admitted at version v is trained on at version
    v + bound at the latest. A rejected prompt leaves `running` without being accepted, which makes room for another.
    """

    bound: int
    """Versions that may lie between sampling and training; 0: none."""
    batch: int
    """Prompts of one step."""
    version: int = 0
    """Steps that the policy has been trained for."""
    accepted: int = 0
    """Prompts accepted for training since the run began."""
    running: int = 0
    """Prompts requested and neither accepted nor rejected."""

    @classmethod
    def resumed(cls, bound: int, batch: int, version: int) -> Admission:
        """Return the state after `version` whole steps with nothing in flight: room for (bound + 1)·batch prompts."""
        return cls(bound, batch, version, accepted=version * batch)

    @property
    def capacity(self) -> int:
        """How many prompts may be requested now."""
        return max(0, (self.bound + self.version + 1) * self.batch - (self.accepted + self.running))

    @property
    def queue_position(self) -> int:
        """Prompts accepted in this step plus those running: the place in the queue of the next one requested."""
        return self.accepted - self.version * self.batch + self.running

    def admit(self, count: int) -> None:
        """Note that `count` prompts are requested. Raises InputError beyond the capacity."""
        if count > self.capacity:
            raise InputError(f"{count} prompts are requested with room for {self.capacity}", "staleness is bounded")
        self.running += count

    def miss(self, count: int) -> None:
        """Note that this step still needs `count` prompts: the others of its batch are accepted."""
        self.accepted = (self.version + 1) * self.batch - count

    def settle(self, count: int) -> None:
        """Note that `count` running prompts are accepted; `miss` takes back those that are rejected after all."""
        self.running -= count
        self.accepted += count

    def advance(self) -> None:
        """Note the end of a step. Prompts that it lacked count as accepted: their places are gone."""
        self.version += 1
        # Without this the places of prompts that never came back would add up, and later ones could be older than
        # `bound`: the rule counts from the version, not from what was trained on.
        self.accepted = max(self.accepted, self.version * self.batch)
