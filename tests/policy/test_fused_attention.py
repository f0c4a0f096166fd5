"""Attention whose heads share keys, with the keys as they are and with a copy of them for each head."""

from __future__ import annotations

import pytest
import torch

from grouprl.policy import fused_attention as module
from grouprl.policy.fused_attention import fused_attention, shares_heads

GENERATOR = torch.Generator().manual_seed(3)
QKV = [torch.randn(2, heads, 6, 8, generator=GENERATOR, dtype=torch.float64) for heads in (6, 2, 2)]
SEEN = (torch.rand(2, 1, 6, 6, generator=GENERATOR) < 0.5) | torch.eye(6, dtype=torch.bool)


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    heads = []
    for head in range(6):
        scores = 0.3 * query[:, head] @ key[:, head // 3].transpose(1, 2)
        heads.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value[:, head // 3])
    return torch.stack(heads, 1)


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_each_head_sees_the_keys_of_its_group(monkeypatch: pytest.MonkeyPatch, reads: bool, causal: bool) -> None:
    monkeypatch.setattr(module, "shares_heads", lambda query, mask: reads)
    qkv = [x.clone().requires_grad_() for x in QKV]
    mine = fused_attention(*qkv, mask=None if causal else SEEN, causal=causal, scale=0.3)
    seen = torch.ones(6, 6).tril().bool() if causal else SEEN[:, 0]
    wanted = plain(*qkv, seen)
    torch.testing.assert_close(mine, wanted)
    found, true = (torch.autograd.grad(out.square().sum(), qkv, retain_graph=True) for out in (mine, wanted))
    torch.testing.assert_close(found, true)


def test_a_gpu_shares_heads_in_half_precision_without_a_mask_alone() -> None:
    query = torch.empty(1, 4, 2, 8, device="meta")
    assert not shares_heads(query, None)
    assert shares_heads(query.bfloat16(), None)
    assert not shares_heads(query.bfloat16(), SEEN)
    assert shares_heads(torch.empty(1, 4, 2, 8), SEEN)
