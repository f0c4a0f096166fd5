"""The settings of a policy's passes."""

from __future__ import annotations

from grouprl.config.sections import Model
from grouprl.policy.passes import PassSettings


def pass_settings(model: Model) -> PassSettings:
    """Return how passes are computed, with everything that the configuration forces or forbids."""
    return PassSettings(model.packing, model.shared_prefix, model.checkpointing, model.compile)
