"""No gradient depends on the slope that torch's `clamp` has at its bounds, which differs between its releases.

It was 1 up to torch 2.13; since 2.14 it is 0, or ½ for bounds that are tensors. Policies that have not moved stand at
such bounds: their ratios are exactly 1, their distances exactly 0.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

import grouprl
from batches import outcome, random_case
from clamps import with_slope
from grouprl.methods import CATALOGUE

NEAR = random_case(5)
CASES = {
    "not moved": random_case(5, on_policy=True),
    "near": NEAR,
    "far": replace(NEAR, logp_bt=100 * NEAR.logp_bt),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_gradients_are_the_same_with_every_slope(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for slope in (1.0, 0.0):
        monkeypatch.setattr(torch.Tensor, "clamp", with_slope(slope))
        with warnings.catch_warnings(action="ignore"):
            found.append(outcome(grouprl.method(name), CASES[case]))
    for field in ("value", "grad_bt", "entropy_grad_bt", "value_grad_bt", "cross_grad_bt"):
        one, other = (getattr(each, field) for each in found)
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=lambda m, f=field: f"{f}: {m}")
