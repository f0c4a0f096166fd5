"""What the canary takes for rounding, and what for weights that did not arrive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from grouprl.policy import load_policy
from grouprl.rollout.servers.http_client import Stale
from grouprl.rollout.servers.server_canary import ServerCanary


def told(canary: ServerCanary, logp_bt: np.ndarray) -> list[list[float]]:
    """What a server says of the canary's rows, of each token behind the first."""
    return [[0.0] * (canary._cut - 1) + list(row) for row in logp_bt]


def float32_logp(policy: Any, canary: ServerCanary) -> np.ndarray:
    with torch.no_grad(), policy.full_precision():
        found: np.ndarray = policy.logp(canary._tokens).double().numpy()
    return found


def moved(policy: Any, scale: float) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))


def test_a_policy_of_mixed_precision_is_compared_in_the_precision_of_servers() -> None:
    policy = load_policy("tiny", precision="mixed", seed=0)
    canary = ServerCanary(policy, None)
    for _ in range(3):
        canary.expect(policy)
        assert canary.check(told(canary, float32_logp(policy, canary))) < 1e-6
        stale = told(canary, float32_logp(policy, canary))
        moved(policy, 1e-4)  # less than the products of bfloat16 show
    canary.expect(policy)
    with pytest.raises(Stale, match="earlier weights"):
        canary.check(stale)
    assert policy.precision == "mixed"


def test_rounding_of_16_bit_numbers_is_not_taken_for_old_weights() -> None:
    policy = load_policy("tiny", dtype="bfloat16", seed=0)
    canary, rng = ServerCanary(policy, None), np.random.default_rng(0)
    canary.expect(policy)
    shape, exact = canary._expected[-1].shape, canary._expected[-1]

    def rounded() -> np.ndarray:
        """Some tokens are far more unlikely than others, and are rounded as much more coarsely."""
        return exact + rng.normal(0, 0.03, shape) * np.exp(rng.normal(0, 0.5, shape))

    for _ in range(500):
        canary._expected.append(rounded())
        canary.check(told(canary, rounded()))
    old = exact
    exact = exact + rng.normal(0, 0.15, shape)  # an update that is more than rounding
    canary._expected.append(rounded())
    with pytest.raises(Stale, match="earlier weights"):
        canary.check(told(canary, old + rng.normal(0, 0.03, shape)))
