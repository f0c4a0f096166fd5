"""Rules of methods that learn from a teacher and whose papers could be checked in part."""

from __future__ import annotations

import pytest
import torch

import grouprl
from grouprl.core.errors import InputError
from small import f64, near, small


def test_minillm_judges_a_token_by_what_the_teacher_says_from_it_on() -> None:
    """A_t = Σ_{k≥t} γ^{k-t}·log(p/π) over Σ_{k≥t} γ^{k-t}: each token's gradient is -A_t over all tokens."""
    old_bt, teacher_bt = f64([[-1.0, -0.5, -2.0], [-0.7, 0, 0]]), f64([[-0.4, -1.5, -0.5], [-0.2, 0, 0]])
    batch = small([0, 1], [3, 1], old_bt=old_bt, ref_bt=teacher_bt)
    method = grouprl.method("minillm", gamma=0.8, single_step="sampled")
    logp_bt = old_bt.clone().requires_grad_()
    method.loss(logp_bt, method.prepare(batch)).value.backward()
    a, b, c = 0.6, -1.0, 1.5
    first, second = (a + 0.8 * b + 0.64 * c) / (1 + 0.8 + 0.64), (b + 0.8 * c) / 1.8
    expected_bt = torch.tensor([[first, second, c], [0.5, 0, 0]], dtype=torch.float64) / -4
    near(logp_bt.grad, expected_bt)


def test_minillm_sums_a_tokens_own_step_over_the_vocabulary() -> None:
    """What is behind a token remains its advantage; its own step is the mean of the KL over all tokens."""
    old_bt, teacher_bt = f64([[-1.0, -0.5, -2.0], [-0.7, 0, 0]]), f64([[-0.4, -1.5, -0.5], [-0.2, 0, 0]])
    batch = small([0, 1], [3, 1], old_bt=old_bt, ref_bt=teacher_bt)
    kl_bt = f64([[0.3, 0.8, 0.1], [0.4, 7.0, 7.0]]).requires_grad_()
    b, c = -1.0, 1.5
    behind = {True: ((0.8 * b + 0.64 * c) / (0.8 + 0.64), c), False: (0.8 * b + 0.64 * c, 0.8 * c)}
    for normalized, (first, second) in behind.items():
        method = grouprl.method("minillm", gamma=0.8, normalized=normalized)
        logp_bt = old_bt.clone().requires_grad_()
        loss = method.loss(logp_bt, method.prepare(batch), outputs={"teacher_kl": kl_bt}).value
        slopes = torch.autograd.grad(loss, (logp_bt, kl_bt))
        near(loss.detach(), f64((1.6 - first - second) / 4))
        near(slopes[0], f64([[-first / 4, -second / 4, 0], [0, 0, 0]]))
        near(slopes[1], f64([[0.25, 0.25, 0.25], [0.25, 0, 0]]))
    nothing_behind = grouprl.method("minillm", gamma=0.0).prepare(batch).advantage_bt
    assert nothing_behind is not None
    assert not nothing_behind.any()


def test_minillm_without_the_kl_says_how_to_make_it() -> None:
    method, batch = grouprl.method("minillm"), small([0, 1], [2, 1], ref_bt=f64([[-1.0, -2.0], [-1.0, 0]]))
    with pytest.raises(InputError, match=r'\[B,T\].*outputs={"teacher_kl": kl_bt}'):
        method.loss(batch.old_bt, method.prepare(batch))


def test_minillm_weighs_tokens_of_the_mixture_by_the_policy_over_the_mixture() -> None:
    """w_t = π/((1-α)·π + α·p), which is at most 1/(1-α); the sum over the vocabulary has no weight."""
    own, teacher, share = f64([[0.5, 0.1]]), f64([[0.1, 0.9]]), 0.2
    mixture = (1 - share) * own + share * teacher
    batch = small([0], [2], old_bt=own.log(), ref_bt=teacher.log(), behavior_bt=mixture.log())
    method = grouprl.method("minillm", teacher_share=share)
    logp_bt, kl_bt = own.log().requires_grad_(), f64([[0.3, 0.4]]).requires_grad_()
    loss = method.loss(logp_bt, method.prepare(batch), outputs={"teacher_kl": kl_bt}).value
    slopes = torch.autograd.grad(loss, (logp_bt, kl_bt))
    behind, weight = float((teacher / own).log()[0, 1]), 0.5 / 0.42
    near(slopes[0], f64([[-weight * behind / 2, 0]]))
    near(slopes[1], f64([[0.5, 0.5]]))
    certain = batch.replace(behavior_bt=((1 - share) * own).log())  # a token that the teacher never writes
    near(method.prepare(certain).multiplier_bt, f64([[1.25, 1.25]]))
