"""The checksum by which processes tell whether they hold the weights that were published."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor


def checksum(state: Mapping[str, Tensor]) -> int:
    """Return the CRC-32 of the bytes of all tensors, in order."""
    total = 0
    for tensor in state.values():
        total = zlib.crc32(bytes_of(tensor), total)
    return total


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, on the CPU; those of a contiguous one there are not copied."""
    return memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
