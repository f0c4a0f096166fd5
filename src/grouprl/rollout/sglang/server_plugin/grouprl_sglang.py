"""Weights from shared memory: a loader for SGLang, in a server with an environment of its own.

A server gets it with `--custom-weight-loader grouprl_sglang.load`, this folder being on its PYTHONPATH. Nothing of
grouprl is imported here. The trainer writes all weights into memory that this process can open, and describes them in
SGLang's own call `update_weights_from_tensor`.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Place = tuple[str, str, list[int], int, int]
"""Name, type, shape, first byte and number of bytes of a tensor."""


class ServedModel(Protocol):
    """The model of a server."""

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> object:
        """Load weights by their names in a checkpoint."""


@dataclass
class MemoryMessage:
    """Places of all weights of one version."""

    path: str
    """The memory, as a file of this machine."""
    places: list[Place]
    checksum: int
    """CRC-32 of all bytes."""


def load(model: ServedModel, named_tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Load every tensor of the version that the message in `named_tensors` describes, and append to its report.

    Errors are reported instead of raised, because SGLang ends a server whose loader fails. If no report arrives,
    nothing was loaded.
    """
    told = json.loads(named_tensors[0][1].cpu().numpy().tobytes())
    try:
        _load(model, MemoryMessage(told["path"], told["places"], told["checksum"]))
    except Exception as error:  # any error is reported to the trainer
        said = f"{type(error).__name__}: {error}".replace("\n", " ")
    else:
        said = "loaded"
    try:
        with open(told["report"], "a") as report:
            report.write(f"{said}\n")
    except OSError as error:
        print(f"grouprl_sglang: {said}, and cannot report it: {error}", flush=True)


def _load(model: ServedModel, told: MemoryMessage) -> None:
    held = _opened(told.path)
    found = zlib.crc32(memoryview(held)[: max((start + size for *_, start, size in told.places), default=0)])
    if found != told.checksum:
        raise ValueError(f"the weights in {told.path} have the checksum {found}, not {told.checksum}")
    model.load_weights(_tensors(held, told.places))


def _opened(path: str) -> mmap.mmap:
    file = os.open(path, os.O_RDONLY)
    try:
        return mmap.mmap(file, 0, access=mmap.ACCESS_COPY)  # a private view: torch asks for one that can be written
    finally:
        os.close(file)


def _tensors(held: mmap.mmap, places: Sequence[Place]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, kind, shape, start, size in places:
        dtype = getattr(torch, kind)
        count = size // torch.empty(0, dtype=dtype).element_size()
        yield name, torch.frombuffer(held, dtype=dtype, count=count, offset=start).reshape(shape)
