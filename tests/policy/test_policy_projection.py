"""The joined operations of the lean forward equal their plain composition, gradients included."""

import pytest
import torch
import torch.nn.functional as F

from grouprl.policy.fast_forward.projection import Projection, gated, project


def plain(x, norm, weight, bias, how):
    if how.order_n is not None:
        weight, bias = weight[how.order_n], None if bias is None else bias[how.order_n]
    y = F.linear(F.rms_norm(x, norm.shape, norm, how.eps), weight, bias)
    y = y if how.factor_n is None else y * how.factor_n
    y = y if how.index_s is None else y[how.index_s]
    if how.turn_s is None:
        return y
    heads = y.view(len(y), -1, how.size)
    turned = torch.view_as_complex(heads[:, : how.turning].unflatten(-1, (-1, 2))) * how.turn_s
    return torch.cat([torch.view_as_real(turned).flatten(-2), heads[:, how.turning :]], dim=1).flatten(1)


def sample(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TURN = torch.polar(torch.ones(7, 1, 2, dtype=torch.float64), sample(7, 1, 2, seed=9))
WAYS = {
    "norm and layer": Projection(1e-6),
    "turned": Projection(1e-6, turn_s=TURN, turning=2, size=4),
    "scaled and turned": Projection(1e-6, factor_n=sample(12, seed=8), turn_s=TURN, turning=2, size=4),
    "in another order": Projection(1e-6, factor_n=sample(12, seed=8), order_n=torch.arange(12).roll(5)),
    "of a vocabulary": Projection(1e-6, turn_s=TURN, turning=2, size=4, index_s=torch.tensor([0, 2, 2, 1, 0, 0, 2])),
}


def in_parts(x, norm, weight, bias, how):
    """The same of a weight in three pieces; the bias comes in order."""
    bias = bias if bias is None or how.order_n is None else bias[how.order_n]
    return project(x, norm, weight.split([6, 4, 2]), bias, how)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", WAYS)
def test_projection_equals_the_plain_operations(name, biased):
    how = WAYS[name]
    rows = 7 if how.index_s is None else 3
    inputs = [sample(rows, 6), sample(6, seed=1), sample(12, 6, seed=2), sample(12, seed=3) if biased else None]
    found = []
    for function in (in_parts, plain):
        leaves = [None if x is None else x.clone().requires_grad_() for x in inputs]
        y = function(*leaves, how)
        (y * sample(7, 12, seed=4)).sum().backward()
        found.append([y.detach(), *(x.grad for x in leaves if x is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_the_gradient_that_comes_in_is_left_as_it_is():
    """It may belong to others too."""
    x = sample(7, 6).requires_grad_()
    y = project(x, sample(6, seed=1), [sample(12, 6, seed=2)], None, WAYS["turned"])
    grad = sample(7, 12, seed=4)
    before = grad.clone()
    y.backward(grad)
    assert torch.equal(grad, before)


def test_frozen_weights_get_no_gradient():
    x, weight = sample(7, 6).requires_grad_(), sample(12, 6, seed=2)
    project(x, sample(6, seed=1), [weight], None, WAYS["norm and layer"]).sum().backward()
    assert x.grad is not None
    assert weight.grad is None


def test_gated_unit_equals_the_plain_operations():
    found = []
    for function in (gated, lambda x: F.silu(x[:, :5]) * x[:, 5:]):
        x = sample(4, 10).requires_grad_()
        y = function(x)
        y.backward(sample(4, 5, seed=1))
        found.append((y.detach(), x.grad))
    torch.testing.assert_close(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])
