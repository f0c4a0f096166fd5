"""Weights published to workers: stored once for all readers, and verified by each worker that loads them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grouprl.core.errors import RunError
from grouprl.orchestrator.on_ray.worker_host import Shared, WorkerHost
from grouprl.orchestrator.weight_checksum import checksum
from grouprl.protocols import Policy

Packed = Mapping[str, tuple[str, tuple[int, ...], NDArray[np.uint8]]]
"""By name: type, shape and bytes of a tensor."""


@dataclass(frozen=True)
class PublishedWeights:
    """Published weights: the number of the exchange, their version, and their CRC-32."""

    exchange: int
    version: int
    checksum: int
    packed: Shared


def publish(host: WorkerHost, policy: Policy, exchange: int, version: int) -> PublishedWeights:
    """Store the trained weights of `policy` for all workers, as a single copy."""
    state = policy.trainable_state()
    return PublishedWeights(exchange, version, checksum(state), host.share(pack_tensors(state)))


def take(weights: PublishedWeights, policy: Policy) -> None:
    """Load published weights into `policy`, directly from shared storage.

    Raises:
        RunError: the loaded weights differ from the published ones.
    """
    policy.load_trainable_state(unpack_tensors(cast("Packed", weights.packed.get())))
    if checksum(policy.trainable_state()) != weights.checksum:
        raise RunError(
            f"version {weights.version} of the weights is not what was published: they were damaged in transit, or "
            "this worker's model differs. Continue with --resume"
        )


def pack_tensors(state: Mapping[str, Tensor]) -> Packed:
    """Return tensors as byte arrays, which Ray stores outside its pickles; CPU tensors share memory with them."""
    return {
        name: (
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            # As bytes, because numpy has no bfloat16.
            tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(),
        )
        for name, tensor in state.items()
    }


def unpack_tensors(packed: Packed) -> dict[str, Tensor]:
    """Return the tensors; they share the arrays' memory and must not be modified."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return {name: _tensor(array, getattr(torch, dtype), shape) for name, (dtype, shape, array) in packed.items()}


def _tensor(array: NDArray[np.uint8], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(array).view(dtype).reshape(shape) if array.size else torch.zeros(shape, dtype=dtype)
