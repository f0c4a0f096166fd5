"""How completions are sampled."""

from grouprl.rollout.sampler import Rollout, generate

__all__ = ["Rollout", "generate"]
