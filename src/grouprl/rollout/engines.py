"""What samples from a policy in this process."""

from __future__ import annotations

from typing import Any

from grouprl.policy.array_policy import ArrayPolicy
from grouprl.protocols import Engine
from grouprl.rollout.array_sampler import ArraySampler
from grouprl.rollout.sampler import LocalSampler


def local_engine(policy: Any) -> Engine[Any, Any]:
    """Return what samples from `policy` with its own weights.

    A policy with a method `make_sampler` brings its own; otherwise one over vectors samples action by action, and a
    language model is decoded.
    """
    if callable(make := getattr(policy, "make_sampler", None)):
        found: Engine[Any, Any] = make()
        return found
    return ArraySampler(policy) if isinstance(policy, ArrayPolicy) else LocalSampler(policy)
