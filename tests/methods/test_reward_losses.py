"""Losses of reward models: hand values, gradients in the scores, and what cannot stand beside them."""

import math

import pytest
import torch

import grouprl
from grouprl.algorithms.regularize.regularize import KLLoss
from grouprl.core.errors import InputError


def batch(reward, group, **more):
    mask_bt = torch.ones(len(reward), 2, dtype=torch.bool)
    return grouprl.Batch(
        mask_bt=mask_bt, group_b=torch.tensor(group), reward_b=torch.tensor(reward, dtype=torch.float64), **more
    )


def graded(method, given, score):
    score_b = torch.tensor(score, dtype=torch.float64, requires_grad=True)
    loss = method.loss(None, method.prepare(given), outputs={"score": score_b})
    loss.value.backward()
    return float(loss.value.detach()), score_b.grad, loss.metrics


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_a_pair_pulls_its_scores_apart():
    value, grad_b, metrics = graded(grouprl.method("bradley_terry"), batch([0, 1], [5, 5]), [0.3, 0.8])
    assert value == pytest.approx(-math.log(sigmoid(0.5)), abs=1e-12)
    torch.testing.assert_close(grad_b, torch.tensor([1.0, -1.0]).double() * sigmoid(-0.5), rtol=0, atol=1e-12)
    assert float(metrics["pair_accuracy"]) == 1
    assert float(metrics["pair_margin"]) == pytest.approx(0.5)


def test_at_equal_scores_the_loss_is_the_logarithm_of_two():
    value, _, metrics = graded(grouprl.method("bradley_terry"), batch([1, 0, 1, 0], [0, 0, 1, 1]), [0.2, 0.2, -3, -3])
    assert value == pytest.approx(math.log(2), abs=1e-12)
    assert float(metrics["pair_accuracy"]) == 0.5, "a tie counts half"


def test_margin_temperature_and_centring_have_their_places():
    method = grouprl.method("bradley_terry", margin=True, tau=0.5, center=0.01)
    given = batch([1, 0], [0, 0], rewards={"margin": torch.tensor([0.7, 0.7], dtype=torch.float64)})
    value, grad_b, _ = graded(method, given, [0.9, 0.4])
    assert value == pytest.approx(-math.log(sigmoid(0.5 / 0.5 - 0.7)) + 0.01 * 1.3**2, abs=1e-12)
    pull, centre = -sigmoid(-0.3) / 0.5, 0.01 * 2 * 1.3
    torch.testing.assert_close(
        grad_b, torch.tensor([pull + centre, centre - pull], dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_centring_is_a_mean_over_pairs_as_the_loss_is():
    score, given = [2.0, 1.0, 0.5, 0.5], batch([1, 0, 1, 0], [0, 0, 1, 1])
    plain, _, _ = graded(grouprl.method("bradley_terry"), given, score)
    centred, _, metrics = graded(grouprl.method("bradley_terry", center=0.1), given, score)
    assert centred - plain == pytest.approx(0.1 * (3.0**2 + 1.0**2) / 2, abs=1e-12)
    assert float(metrics["center_scores_loss"]) == pytest.approx(0.5)


def test_scores_hundreds_of_nats_apart_stay_finite():
    value, grad_b, _ = graded(grouprl.method("bradley_terry"), batch([1, 0], [0, 0]), [-500.0, 500.0])
    assert value == pytest.approx(1000)
    torch.testing.assert_close(grad_b, torch.tensor([-1.0, 1.0]).double())


def test_a_shift_of_all_scores_changes_nothing_and_centring_sees_it():
    given = batch([1, 0, 0], [0, 0, 0])
    plain, centred = grouprl.method("bradley_terry"), grouprl.method("bradley_terry", center=0.01)
    one, other = [0.5, 0.1, -1.0], [7.5, 7.1, 6.0]
    assert graded(plain, given, one)[0] == pytest.approx(graded(plain, given, other)[0], abs=1e-12)
    assert graded(centred, given, one)[0] < graded(centred, given, other)[0]


def test_a_regression_is_the_mean_square_of_the_errors():
    value, grad_b, metrics = graded(grouprl.method("reward_regression"), batch([4, 1, 2], [0, 1, 2]), [3.0, 1.5, 2.0])
    assert value == pytest.approx((1 + 0.25) / 3)
    torch.testing.assert_close(grad_b, torch.tensor([-2 / 3, 1 / 3, 0.0]).double())
    assert float(metrics["score_error"]) == pytest.approx(0.5)


def test_without_pairs_nothing_is_learnt():
    method, given = grouprl.method("bradley_terry"), batch([1, 1], [0, 0])
    assert method.zero_rows(method.prepare(given)).all()


def test_terms_of_tokens_cannot_stand_beside_scores():
    method = grouprl.method("bradley_terry")
    with pytest.raises(InputError, match="kl_loss reads tokens, but the objective pair does not"):
        method.with_parts(regularize=(KLLoss(),))
    assert method.outputs == ("score",)


def test_a_method_of_log_probs_needs_them():
    method = grouprl.method("grpo")
    with pytest.raises(InputError, match="logp_bt is None"):
        method.loss(None, method.prepare(batch([1, 0], [0, 0], old_bt=torch.zeros(2, 2).double())))


def test_a_margin_that_the_data_lack_is_named():
    with pytest.raises(InputError, match=r"stored_margin needs batch\.rewards\.margin"):
        graded(grouprl.method("bradley_terry", margin=True), batch([1, 0], [0, 0]), [1.0, 0.0])
