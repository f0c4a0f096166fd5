"""Weights in half precision: small updates add up in float32 copies, and are not rounded away."""

from __future__ import annotations

import torch
from torch import nn

from grouprl.policy.master_weights import MasterWeights

RATE = 1e-4
"""Far below the steps of a bfloat16 weight of 1, which are 1/128."""


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.5)


def steps(optimizer: torch.optim.Optimizer, weight: nn.Parameter, count: int) -> None:
    for _ in range(count):
        weight.grad = torch.ones_like(weight)
        optimizer.step()


def test_small_updates_add_up() -> None:
    plain, half, wide = (nn.Parameter(torch.ones(3)) for _ in range(3))
    plain.data, half.data = plain.data.bfloat16(), half.data.bfloat16()
    lossy, ours, exact = sgd([plain]), MasterWeights([half], sgd), sgd([wide])
    for optimizer, weight in ((lossy, plain), (ours, half), (exact, wide)):
        steps(optimizer, weight, 200)
    assert torch.equal(plain.data, torch.ones(3).bfloat16()), "what is mended here"
    assert half.dtype == torch.bfloat16
    assert torch.equal(half.data, wide.data.bfloat16())
    assert float(wide[0]) < 0.97


def test_state_goes_on_where_it_was_to_the_bit() -> None:
    torch.manual_seed(0)
    start = torch.randn(5)
    whole, first, then = (nn.Parameter(start.bfloat16()) for _ in range(3))
    once = MasterWeights([whole], sgd)
    steps(once, whole, 50)
    before = MasterWeights([first], sgd)
    steps(before, first, 20)
    after = MasterWeights([then], sgd)
    then.data.copy_(first.data)
    after.load_state_dict(before.state_dict())
    steps(after, then, 30)
    assert torch.equal(then.data, whole.data)
    assert torch.equal(after.state_dict()["masters"][0], once.state_dict()["masters"][0])


def test_weights_changed_by_others_are_taken_over() -> None:
    weight = nn.Parameter(torch.ones(2).bfloat16())
    optimizer = MasterWeights([weight], lambda found: torch.optim.SGD(found, lr=RATE))
    steps(optimizer, weight, 3)
    weight.data[0] = 2.0
    steps(optimizer, weight, 1)
    found = optimizer.state_dict()["masters"][0]
    torch.testing.assert_close(found, torch.tensor([2.0 - RATE, 1.0 - 4 * RATE]), rtol=0, atol=1e-7)


def test_the_rate_and_the_gradient_are_the_trainers() -> None:
    weight = nn.Parameter(torch.ones(2).bfloat16())
    optimizer = MasterWeights([weight], sgd)
    optimizer.param_groups[0]["lr"] = 0.25
    steps(optimizer, weight, 1)
    assert weight.tolist() == [0.75, 0.75]
    optimizer.zero_grad(set_to_none=False)
    assert weight.grad is not None
    assert not weight.grad.any()
