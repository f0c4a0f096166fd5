"""Sampling of completions and episodes."""

from grouprl.records.rollout import Rollout
from grouprl.rollout.local.sampler import generate

__all__ = ["Rollout", "generate"]
