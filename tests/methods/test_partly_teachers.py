"""Rules of methods that learn from a teacher and whose papers could be checked in part."""

from __future__ import annotations

import torch

import grouprl
from small import f64, near, small


def test_minillm_judges_a_token_by_what_the_teacher_says_from_it_on() -> None:
    """A_t = Σ_{k≥t} γ^{k-t}·log(p/π) over Σ_{k≥t} γ^{k-t}: each token's gradient is -A_t over all tokens."""
    old_bt, teacher_bt = f64([[-1.0, -0.5, -2.0], [-0.7, 0, 0]]), f64([[-0.4, -1.5, -0.5], [-0.2, 0, 0]])
    batch = small([0, 1], [3, 1], old_bt=old_bt, ref_bt=teacher_bt)
    method = grouprl.method("minillm", gamma=0.8)
    logp_bt = old_bt.clone().requires_grad_()
    method.loss(logp_bt, method.prepare(batch)).value.backward()
    a, b, c = 0.6, -1.0, 1.5
    first, second = (a + 0.8 * b + 0.64 * c) / (1 + 0.8 + 0.64), (b + 0.8 * c) / 1.8
    expected_bt = torch.tensor([[first, second, c], [0.5, 0, 0]], dtype=torch.float64) / -4
    near(logp_bt.grad, expected_bt)
