"""Tensors in files: weights as safetensors, state in torch's format, read without running code."""

from __future__ import annotations

import errno
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from grouprl.core.errors import RunError
from grouprl.storage.pickles import refusal


def save_state(state: Mapping[str, object], path: Path) -> None:
    """Write plain containers and tensors. Raises OSError if the disk is full or the file cannot be written."""
    with path.open("wb") as file:
        sink = _Sink(file)
        try:
            torch.save(_with_names_shared(state), cast(IO[bytes], sink))
        except RuntimeError as error:
            raise sink.error or OSError(errno.EIO, str(error)) from error


def _with_names_shared(value: object) -> object:
    """Return nested containers whose equal keys are one object each.

    A pickle writes an object once and refers to it afterwards: without this the bytes would depend on whether a key
    comes from the code or from a checkpoint.
    """
    if isinstance(value, Mapping):
        return {sys.intern(k) if type(k) is str else k: _with_names_shared(each) for k, each in value.items()}
    if type(value) is list:
        return [_with_names_shared(each) for each in value]
    return tuple(_with_names_shared(each) for each in value) if type(value) is tuple else value


def load_state(path: Path) -> dict[str, object]:
    """Read a file written by `save_state`; raises RunError if it holds anything but plain containers and tensors, and
    runs no code.
    """
    try:
        found = torch.load(path, weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, AttributeError, OSError) as error:
        raise RunError(f"{path} does not hold plain tensors and containers: {refusal(error)}") from error
    if not isinstance(found, dict):
        raise RunError(f"{path} holds {type(found).__name__} where a mapping is expected")
    return found


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; raises RunError if it is not one."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is not a whole safetensors file: {error}") from error


def described_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by their shapes alone, on the meta device; raises RunError if it is not
    one.
    """
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is not a whole safetensors file: {error}") from error
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


class _Sink:
    """A binary file that remembers why it could not be written, which torch does not pass on."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()
