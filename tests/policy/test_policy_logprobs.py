"""Log-probs, entropies and cross-entropies chunk by chunk, against the dense computation."""

import math

import pytest
import torch
import torch.nn.functional as F

from grouprl.policy import logprobs
from grouprl.policy.logprobs import token_logprobs
from largest_tensor import Largest


def dense(hidden, weight, bias, target, temperature, cross):
    logits = F.linear(hidden, weight, bias)
    logp = F.log_softmax(logits / temperature, dim=-1)
    q = F.softmax(logits / cross, dim=-1).detach()
    return logp.gather(1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1), (q * logp).sum(-1)


def inputs(m=7, d=5, v=11, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(m, d, generator=g, dtype=dtype, requires_grad=True)
    weight = torch.randn(v, d, generator=g, dtype=dtype, requires_grad=True)
    bias = torch.randn(v, generator=g, dtype=dtype, requires_grad=True)
    return hidden, weight, bias, torch.randint(v, (m,), generator=g)


def test_hand_values():
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[math.log(3.0)], [0.0]])
    logp, entropy, _ = token_logprobs(hidden, weight, None, torch.tensor([0]), entropy=True)
    assert logp.item() == pytest.approx(math.log(0.75))
    assert entropy.item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    halved, *_ = token_logprobs(hidden, weight, None, torch.tensor([1]), temperature=2.0)
    assert halved.item() == pytest.approx(-math.log(1 + math.sqrt(3.0)))


@pytest.mark.parametrize("chunk_elements", [1, 11, 25, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("cross", [1.0, 0.4])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_equal_the_dense_way(chunk_elements, temperature, cross, biased):
    hidden, weight, bias, target = inputs()
    leaves = [hidden, weight] + ([bias] if biased else [])
    bias = bias if biased else None
    g = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(7, generator=g, dtype=torch.float64) for _ in range(3)]
    settings = {"temperature": temperature, "cross": cross}
    ours = token_logprobs(hidden, weight, bias, target, entropy=True, chunk_elements=chunk_elements, **settings)
    theirs = dense(hidden, weight, bias, target, **settings)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(ours, leaves, cotangents), torch.autograd.grad(theirs, leaves, cotangents), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_cross_entropy_with_itself_is_minus_the_entropy_and_pulls_nowhere(temperature):
    """q = π: Σ π log π has, with the first factor held, the gradient π - π = 0, to the bit."""
    hidden, weight, bias, target = inputs(m=40, dtype=torch.float32)
    _, entropy, cross = token_logprobs(
        hidden, weight, bias, target, temperature=temperature, entropy=True, cross=temperature
    )
    assert torch.equal(cross, -entropy)
    for grad in torch.autograd.grad(cross.sum(), [hidden, weight, bias]):
        assert (grad == 0).all()


def test_cross_entropy_hand_values():
    """z = (ln 9, 0): π = (0.9, 0.1), at κ = 2 q = (0.75, 0.25); dz = q - π = (-0.15, 0.15)."""
    bias = torch.tensor([math.log(9.0), 0.0], dtype=torch.float64, requires_grad=True)
    nothing, weight = torch.zeros(1, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    scores = token_logprobs(nothing, weight, bias, torch.tensor([0]), cross=2.0)
    assert scores.cross_m.item() == pytest.approx(0.75 * math.log(0.9) + 0.25 * math.log(0.1))
    assert scores.entropy_m is None
    scores.cross_m.sum().backward()
    assert bias.grad.tolist() == pytest.approx([-0.15, 0.15])


def test_only_wanted_gradients_are_given():
    hidden, weight, bias, target = inputs()
    logp, entropy, _ = token_logprobs(hidden.detach(), weight, bias.detach(), target)
    logp.sum().backward()
    assert entropy is None
    assert weight.grad is not None
    assert hidden.grad is None


def test_no_positions():
    hidden, weight, bias, _ = inputs()
    logp, entropy, _ = token_logprobs(hidden[:0], weight, bias, torch.zeros(0, dtype=torch.long), entropy=True)
    (logp.sum() + entropy.sum()).backward()
    assert logp.shape == entropy.shape == (0,)
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def largest(positions, vocabulary, chunk_elements):
    hidden, weight, bias, target = inputs(positions, 4, vocabulary, torch.float32)
    with Largest() as seen:
        scores = token_logprobs(hidden, weight, bias, target, entropy=True, cross=0.5, chunk_elements=chunk_elements)
        sum(x.sum() for x in scores).backward()
    return seen.numel


def test_no_tensor_grows_with_positions_times_vocabulary():
    chunk = 8000
    assert largest(200, 1000, chunk) <= chunk  # dense: 200 000
    assert largest(400, 1000, chunk) <= chunk
    assert largest(400, 2000, chunk) <= chunk  # the weight's gradient, 2000 * 4, is as large
    assert largest(200, 1000, 10**9) == 200_000  # the measure sees what it should


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy", [False, True])
def test_distributions_that_are_kept_give_the_gradients_of_those_computed_anew_to_the_bit(
    temperature, entropy, monkeypatch
):
    found = []
    for kept in (2**27, 0):
        monkeypatch.setattr(logprobs, "KEPT_BYTES", kept)
        hidden, weight, bias, target = inputs(m=40, v=300, dtype=torch.float32)
        scores = token_logprobs(
            hidden, weight, bias, target, temperature=temperature, entropy=entropy, chunk_elements=3000
        )
        value = scores.logp_m.square().sum() + (scores.entropy_m.square().sum() if entropy else 0)
        grads = [torch.autograd.grad(value, (hidden, weight, bias), retain_graph=True) for _ in range(2)]
        found += [(scores.logp_m.detach(), *each) for each in grads]  # a second time, too
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("vocabulary", [8, 2**13])
def test_mixed_log_probs_and_their_gradients_are_near_the_dense_ones(temperature, vocabulary, monkeypatch):
    """In one go and in several chunks; also for a token that is nearly sure, whose gradient is small."""
    monkeypatch.setattr(logprobs, "VOCABULARY", vocabulary)
    hidden, weight, bias, target = inputs(m=9, v=40, dtype=torch.float32)
    with torch.no_grad():
        hidden[0] = 12 * weight[target[0]] / weight[target[0]].norm()
    factor = torch.linspace(-1, 2, 9)
    leaves = (hidden, weight, bias)
    logp, *_ = token_logprobs(
        hidden, weight, bias, target, temperature=temperature, chunk_elements=120, precision="mixed"
    )
    wanted, *_ = dense(hidden, weight, bias, target, temperature, 1.0)
    torch.testing.assert_close(logp, wanted, rtol=0, atol=0.06)
    ours, theirs = (torch.autograd.grad(x, leaves, factor) for x in (logp, wanted))
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.01 * b.norm()
    sure = (ours[0][0] - theirs[0][0]).norm() / theirs[0][0].norm()
    assert sure < 0.05
