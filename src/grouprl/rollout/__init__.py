"""How answers are drawn."""

from grouprl.rollout.sampler import Rollout, generate

__all__ = ["Rollout", "generate"]
