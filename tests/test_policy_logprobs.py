import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from grouprl.policy.logprobs import token_logprobs


def dense(hidden, weight, bias, target, temperature):
    logp = F.log_softmax(F.linear(hidden, weight, bias) / temperature, dim=-1)
    return logp.gather(1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def inputs(m=7, d=5, v=11, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(m, d, generator=g, dtype=dtype, requires_grad=True)
    weight = torch.randn(v, d, generator=g, dtype=dtype, requires_grad=True)
    bias = torch.randn(v, generator=g, dtype=dtype, requires_grad=True)
    return hidden, weight, bias, torch.randint(v, (m,), generator=g)


def test_hand_values():
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[math.log(3.0)], [0.0]])
    logp, entropy = token_logprobs(hidden, weight, None, torch.tensor([0]), entropy=True)
    assert logp.item() == pytest.approx(math.log(0.75))
    assert entropy.item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    halved, _ = token_logprobs(hidden, weight, None, torch.tensor([1]), temperature=2.0)
    assert halved.item() == pytest.approx(-math.log(1 + math.sqrt(3.0)))


@pytest.mark.parametrize("chunk_elements", [1, 11, 25, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_equal_the_dense_way(chunk_elements, temperature, biased):
    hidden, weight, bias, target = inputs()
    leaves = [hidden, weight] + ([bias] if biased else [])
    bias = bias if biased else None
    g = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(7, generator=g, dtype=torch.float64) for _ in range(2)]
    ours = token_logprobs(
        hidden, weight, bias, target, temperature=temperature, entropy=True, chunk_elements=chunk_elements
    )
    theirs = dense(hidden, weight, bias, target, temperature)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(ours, leaves, cotangents), torch.autograd.grad(theirs, leaves, cotangents), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_only_wanted_gradients_are_given():
    hidden, weight, bias, target = inputs()
    logp, entropy = token_logprobs(hidden.detach(), weight, bias.detach(), target)
    logp.sum().backward()
    assert entropy is None
    assert weight.grad is not None
    assert hidden.grad is None


def test_no_positions():
    hidden, weight, bias, _ = inputs()
    logp, entropy = token_logprobs(hidden[:0], weight, bias, torch.zeros(0, dtype=torch.long), entropy=True)
    (logp.sum() + entropy.sum()).backward()
    assert logp.shape == entropy.shape == (0,)
    assert torch.equal(weight.grad, torch.zeros_like(weight))


class Largest(TorchDispatchMode):
    """Records the largest tensor any operation returns."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def largest(positions, vocabulary, chunk_elements):
    hidden, weight, bias, target = inputs(positions, 4, vocabulary, torch.float32)
    with Largest() as seen:
        logp, entropy = token_logprobs(hidden, weight, bias, target, entropy=True, chunk_elements=chunk_elements)
        (logp.sum() + entropy.sum()).backward()
    return seen.numel


def test_no_tensor_grows_with_positions_times_vocabulary():
    chunk = 8000
    assert largest(200, 1000, chunk) <= chunk  # dense: 200 000
    assert largest(400, 1000, chunk) <= chunk
    assert largest(400, 2000, chunk) <= chunk  # the weight's gradient, 2000 * 4, is as large
    assert largest(200, 1000, 10**9) == 200_000  # the measure sees what it should
