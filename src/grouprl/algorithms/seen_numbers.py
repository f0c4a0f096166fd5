"""Arrays by name that agents saw and numbers with which they acted, as parts read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class SeenNumbers(Protocol):
    """Inputs of agents that see arrays by name and act with numbers (`grouprl.policy.ArrayInputs`)."""

    @property
    def observation_bt(self) -> Mapping[str, Tensor]:
        """[B,T,…] by name: what was seen before each action."""

    @property
    def action_bt(self) -> Tensor:
        """[B,T] int64 the actions."""
