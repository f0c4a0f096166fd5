"""The end of a run whose update leaves the policy elsewhere between two steps: the weights for its continuation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from grouprl.core.json_types import State
    from grouprl.protocols import Trainable

AHEAD = "ahead"
"""Name in a part's memory of the weights with which the next step would have sampled."""


def weights_of(policy: Trainable) -> dict[str, Tensor]:
    """Return copies of a policy's trainable weights by name."""
    return {name: x.detach().clone() for name, x in policy.trainable_state().items()}


def keep_ahead(policy: Trainable, store: State) -> None:
    """Remember in a part's memory the weights that the policy has, before it gets those with which the run ends."""
    store[AHEAD] = weights_of(policy)


def go_on(policy: Trainable, store: State) -> None:
    """Give the policy of a run that had ended, and is now continued, the weights that a part remembers for it."""
    if AHEAD in store:
        policy.load_trainable_state(store.pop(AHEAD))
