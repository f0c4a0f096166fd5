"""Environments: what an agent acts in, turn by turn."""

from grouprl.envs.environment import Environment, Observation, Step

__all__ = ["Environment", "Observation", "Step"]
