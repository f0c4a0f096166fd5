"""What an engine gives for some tokens, and a comparison of two."""

from __future__ import annotations

import torch


def results(policy, tokens):
    g = torch.Generator().manual_seed(9)
    shape = (len(tokens), tokens.max_response)
    cotangents = [torch.randn(shape, generator=g, dtype=torch.float64).to(policy.dtype) for _ in range(2)]
    out = policy.evaluate(tokens, ["log_prob", "entropy"])
    for parameter in policy.parameters():
        parameter.grad = None
    policy.backward(tokens, dict(zip(out, cotangents, strict=True)))
    return out, {name: p.grad for name, p in policy.named_parameters()}


def assert_same(first, second, tolerance):
    (out, grads), (other, other_grads) = first, second
    for name, x in out.items():
        torch.testing.assert_close(x, other[name], rtol=0, atol=tolerance)
    assert grads.keys() == other_grads.keys()
    for name, grad in grads.items():
        scale = float(other_grads[name].abs().max())
        torch.testing.assert_close(grad, other_grads[name], rtol=0, atol=tolerance * max(scale, 1.0), msg=name)
