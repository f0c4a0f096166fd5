"""Linear layers whose products, and their gradients, are those of `precision: onednn`."""

from __future__ import annotations

import torch

from grouprl.policy.products import product


def onednn_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x @ weight.T + bias of float32 tensors [...,K] and [N,K] by oneDNN: in place of torch's own `linear`."""
    flat = product(x.reshape(-1, x.shape[-1]), weight, "onednn")
    found = flat.reshape(*x.shape[:-1], len(weight))
    return found if bias is None else found + bias
