"""Sampling of completions and episodes. The names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.core.late_import import lazy_names

if TYPE_CHECKING:
    from grouprl.records.rollout import Rollout
    from grouprl.rollout.local.sampler import generate

__all__ = ["Rollout", "generate"]
_HOMES = {"Rollout": "grouprl.records.rollout", "generate": "grouprl.rollout.local.sampler"}
__getattr__ = lazy_names(__name__, _HOMES)
