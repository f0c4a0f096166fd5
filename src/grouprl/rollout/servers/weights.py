"""Weights for servers: as tensors of a checkpoint, in memory that a server on this machine can open."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from grouprl.core.answering import Answering
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.policy.lora import is_adapted, is_linear, linear_weight
from grouprl.storage.model_files import Described

if TYPE_CHECKING:
    from torch import nn

    from grouprl.policy.language.causal_lm import CausalPolicy

ALIGNED = 64
"""Alignment of tensors in bytes."""


class HasDescription(Protocol):
    """The description of a tensor that is elsewhere."""

    @property
    def described(self) -> Described:
        """Name, type and shape."""
        ...


@runtime_checkable
class InParts(Protocol, metaclass=Answering):
    """A policy that no process holds whole: its checkpoint is described first, and then gathered tensor by tensor."""

    def checkpoint_entries(self, *, merged: bool = True) -> Sequence[HasDescription]:
        """Return what describes each tensor."""
        ...

    def checkpoint_tensors(self, given: Sequence[HasDescription]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors, whole and on the CPU, a few at a time in memory."""
        ...


def stream(policy: CausalPolicy | InParts) -> tuple[list[Described], Iterator[tuple[str, Tensor]]]:
    """Return name, type and shape of each tensor of a policy's checkpoint, and the tensors in the same order.

    Raises:
        InputError: adapters that cannot be merged layer by layer.
    """
    if isinstance(policy, InParts):
        given = policy.checkpoint_entries()
        return [each.described for each in given], policy.checkpoint_tensors(given)
    with torch.no_grad():
        tensors = [(name, tensor.detach()) for name, tensor in checkpoint_tensors(policy)]
    return [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors], iter(tensors)


def checkpoint_tensors(policy: CausalPolicy) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a language model under the names of its checkpoint, adapters merged into them.

    Raises:
        InputError: adapters that cannot be merged layer by layer.
    """
    model = policy.model
    if not is_adapted(model):
        yield from _own(model)
        return
    base = model.get_base_model()
    for name, module in base.named_modules():
        if hasattr(module, "lora_A"):
            if not is_linear(module):
                raise InputError(
                    f"the adapters of {name} are not plain low-rank ones",
                    "the server gets each layer's weight with its adapters merged",
                    "Use adapters without dropout, bias and magnitudes",
                )
            yield f"{name}.weight", linear_weight(module)
    for name, tensor in _own(base):
        if ".lora_" in name or name.startswith("lora_"):
            continue
        owner = name.rpartition(".base_layer.")
        if not owner[0]:
            yield name, tensor
        elif owner[2] != "weight":
            yield f"{owner[0]}.{owner[2]}", tensor


def base_tensors(policy: CausalPolicy) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights below the adapters of a language model under the names of its checkpoint."""
    for name, tensor in _own(policy.model.get_base_model()):
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), tensor


def _own(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield each parameter and buffer once: tied ones have no entry of their own in a checkpoint."""
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape)
        if place not in seen or not tensor.numel():  # tensors without elements share an address, and are not tied
            seen.add(place)
            yield name, tensor


Place: TypeAlias = tuple[str, str, list[int], int, int]
"""Name, type, shape, first byte and number of bytes of a tensor."""


@dataclass(frozen=True)
class WrittenWeights:
    """Description of all weights of one version, for servers."""

    path: str
    places: list[Place]
    checksum: int
    """CRC-32 of all bytes."""

    def message(self) -> JsonObject:
        """Return the arguments of a server's `update_weights`."""
        return {"path": self.path, "places": [list(place) for place in self.places], "checksum": self.checksum}


class WeightMemory:
    """Memory that holds one version, and that other processes of this user on this machine can open.

    It has no name in the file system, so it disappears with the run, however the run ends.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("grouprl-weights") if hasattr(os, "memfd_create") else _unnamed()
        self._map: mmap.mmap | None = None
        self.written: WrittenWeights | None = None
        """The version that it holds; None before the first one."""

    def write(self, policy: CausalPolicy | InParts) -> WrittenWeights:
        """Write the weights of a policy in place of the previous ones."""
        described, tensors = stream(policy)
        places: list[Place] = []
        end = 0
        for name, dtype, shape in described:
            size = math.prod(shape) * dtype.itemsize
            places.append((name, str(dtype).removeprefix("torch."), list(shape), end, size))
            end += -(-size // ALIGNED) * ALIGNED
        held = self._room(end)
        for (name, *_, start, size), (found, tensor) in zip(places, tensors, strict=True):
            assert name == found
            held[start : start + size] = _bytes(tensor)
        # The memory may be larger: it keeps the size of the largest version so far.
        with memoryview(held) as view:
            checksum = zlib.crc32(view[: places[-1][3] + places[-1][4]])
        self.written = WrittenWeights(f"/proc/{os.getpid()}/fd/{self._fd}", places, checksum)
        return self.written

    def copied(self, start: int, end: int) -> Tensor:
        """Return a copy of the bytes from `start` to `end` of what was written, [end - start]."""
        assert self._map is not None
        with memoryview(self._map) as held:
            return torch.frombuffer(bytearray(held[start:end]), dtype=torch.uint8)

    def close(self) -> None:
        """Release the memory; may be called twice."""
        if self._map is not None:
            self._map.close()
            self._map = None
        # A run that fails before its first exchange has nothing mapped, but the descriptor is open from the start.
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _room(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            # An empty file cannot be mapped.
            os.ftruncate(self._fd, max(size, 1))
            self._map = mmap.mmap(self._fd, max(size, 1))
        return self._map


def _unnamed() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _bytes(tensor: Tensor) -> memoryview:
    # As bytes, since numpy has no bfloat16.
    return memoryview(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
