"""The supply of an asynchronous run's completions: sampler processes, or the trainer itself between its updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from grouprl.core.json_types import State

if TYPE_CHECKING:
    from grouprl.records.requests import RolloutRequest
    from grouprl.records.samples import ScoredSamples

Unit: TypeAlias = "tuple[int, Sequence[RolloutRequest]]"
"""Requests that are completed together, with the number of their unit; numbers rise."""
PIECES = 8
"""Number of pieces in which an engine that cannot be paused samples the longest completion."""


class Supply(Protocol):
    """Completes units of requests; units are taken in the order of their numbers."""

    def publish(self, version: int) -> None:
        """Sample with the policy's current weights from now on, as version `version`."""

    def request(self, number: int, requests: Sequence[RolloutRequest]) -> None:
        """Request the completions of unit `number`."""

    def take(self, number: int) -> ScoredSamples:
        """Return the scored completions of unit `number`, each token with its version, once all have ended."""

    def metrics(self) -> dict[str, float]:
        """Return what was measured since the last call."""

    def state(self, units: Sequence[Unit]) -> State:
        """Return what was sampled for `units`, as plain data; empty if that cannot be continued after a resume."""

    def restore(self, units: Sequence[Unit], state: State) -> None:
        """Continue with `units`, as `state` has them."""

    def close(self) -> None:
        """End the processes that sample, if there are any; `state` still answers. May be called twice."""
