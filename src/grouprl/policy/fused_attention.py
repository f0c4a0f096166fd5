"""Attention by torch's fused kernels, whichever of them a device has for the numbers, masks and heads at hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F

HALVES = (torch.float16, torch.bfloat16)


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float = 1.0,
) -> torch.Tensor:
    """Return softmax(scale * query @ key.T + mask) @ value, [R,heads,L,d].

    Args:
        query: [R,heads,L,d].
        key: [R,kv_heads,K,d]; the query heads share key heads evenly.
        value: [R,kv_heads,K,d].
        mask: broadcast to [R,heads,L,K]: bool (seen) or numbers that are added; None: every key is seen.
        causal: a query sees the keys up to its own place, without a mask.
        scale: factor of the scores.
    """
    shared = query.shape[1] // key.shape[1]
    if shared > 1 and not shares_heads(query, mask):
        key, value = (x.repeat_interleave(shared, 1) for x in (key, value))
        shared = 1
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=shared > 1
    )


def shares_heads(query: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Return whether the kernel for these queries reads keys that several heads share.

    On CUDA only flash attention does, which takes no mask and no float32. The kernel for the others wants each head's
    own keys; where they are shared, torch falls back on plain products, whose memory grows with the square of a row.
    """
    return query.device.type == "cpu" or (mask is None and query.dtype in HALVES)
