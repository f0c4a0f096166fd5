"""How answers are drawn."""

from .sampler import Rollout, generate

__all__ = ["Rollout", "generate"]
