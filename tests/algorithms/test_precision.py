"""Constants of methods keep the precision of the batch: nothing passes through PyTorch's default type."""

from __future__ import annotations

import pytest
import torch

import grouprl
from batches import outcome, random_case
from grouprl.methods import CATALOGUE

KEPT = {"grpo@trl": {"top_entropy_quantile": 0.5, "entropy_coef": 0.1}}
CASES = [(name, {}) for name in sorted(CATALOGUE)] + list(KEPT.items())


@pytest.mark.parametrize(("name", "settings"), CASES)
@pytest.mark.filterwarnings("ignore:the method")
def test_numbers_in_double_precision_do_not_depend_on_the_default_type(name, settings):
    method, case = grouprl.method(name, **settings), random_case(5)
    found = outcome(method, case)
    torch.set_default_dtype(torch.float64)
    try:
        expected = outcome(method, case)
    finally:
        torch.set_default_dtype(torch.float32)
    for field in ("value", "grad_bt", "entropy_grad_bt", "value_grad_bt"):
        torch.testing.assert_close(getattr(found, field), getattr(expected, field), rtol=1e-13, atol=1e-15)
    for key, value in expected.metrics.items():
        torch.testing.assert_close(found.metrics[key].double(), value.double(), rtol=1e-13, atol=1e-15)
