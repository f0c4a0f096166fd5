"""Files for weights and optimiser state that several processes hold in parts, through `torch.distributed.checkpoint`.

Each process writes its own parts, and metadata record the place of each part in its tensor, so that any number of
processes can read them.
"""

from __future__ import annotations

import errno
import os
import pickle
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from grouprl.core.errors import RunError

WEIGHTS, MEMORY = "weights/", "optimizer/"
"""Prefixes of the names of parameters, and of the optimiser's state ("number of the parameter/name")."""
DAMAGED = (CheckpointException, RuntimeError, OSError, ValueError, KeyError, EOFError, pickle.UnpicklingError)


def write_parts(state: Mapping[str, Tensor], folder: Path, group: object) -> None:
    """Write this process's parts of distributed tensors, and shared values once; every process of `group` must call it.

    Raises:
        OSError: a file of any of the processes could not be written.
    """
    writer = FileSystemWriter(folder, single_file_per_rank=True, thread_count=1)
    try:
        dcp.save(dict(state), storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise _as_os_error(error) from error


def check_parts(folder: Path) -> None:
    """Check that the parts of all processes are in `folder`, as this process sees it; raises RunError."""
    found = FileSystemReader(folder).read_metadata().storage_data
    absent = sorted({each.relative_path for each in found.values() if not (folder / each.relative_path).is_file()})
    if absent:
        raise RunError(
            f"{folder} holds no {absent[0]}, which another process has written into a folder of that name: the run's "
            "folder is not shared. Give --folder a path where all machines see the same files"
        )


def read_parts(state: dict[str, Tensor], folder: Path, group: object) -> None:
    """Fill the tensors of `state` in place, distributed ones with this process's parts; every process of `group` must
    call it.

    Raises:
        RunError: the files do not hold them.
    """
    try:
        dcp.load(state, storage_reader=FileSystemReader(folder), process_group=group)
    except DAMAGED as error:
        raise _unreadable(folder, error) from error


def names_and_shapes(folder: Path) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and type of every tensor, by name.

    Raises:
        RunError: there is no metadata.
    """
    try:
        found = FileSystemReader(folder).read_metadata().state_dict_metadata
    except DAMAGED as error:
        raise _unreadable(folder, error) from error
    return {
        name: (tuple(data.size), data.properties.dtype)
        for name, data in found.items()
        if isinstance(data, TensorStorageMetadata)
    }


class PartsReader:
    """Whole tensors out of the parts, read by this process alone, one at a time.

    Raises:
        RunError: there is no metadata.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._described = names_and_shapes(folder)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, by name."""
        return {name: shape for name, (shape, _) in self._described.items()}

    def read(self, name: str) -> Tensor:
        """Return a tensor, whole.

        Raises:
            RunError: the files do not hold it.
        """
        return self.read_all([name])[name]

    def read_all(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Return tensors, whole, by name.

        Raises:
            RunError: the files do not hold them.
        """
        state = {name: torch.zeros(shape, dtype=dtype) for name in names for shape, dtype in [self._described[name]]}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is meant
                dcp.load(state, storage_reader=FileSystemReader(self._folder), no_dist=True)
        except DAMAGED as error:
            raise _unreadable(self._folder, error) from error
        return state


def read_whole(folder: Path, beginning: str) -> dict[str, Tensor]:
    """Return whole tensors, read by this process alone, by the rest of their names after `beginning`.

    Raises:
        RunError: the files do not hold them.
    """
    reader = PartsReader(folder)
    found = reader.read_all([name for name in reader.shapes if name.startswith(beginning)])
    return {name.removeprefix(beginning): tensor for name, tensor in found.items()}


def read_memory(folder: Path) -> dict[int, dict[str, Tensor]]:
    """Return the optimiser's state of each parameter, whole, by the parameter's number."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in read_whole(folder, MEMORY).items():
        number, _, what = name.partition("/")
        found.setdefault(int(number), {})[what] = tensor
    return found


def _as_os_error(error: CheckpointException) -> OSError:
    """Return the error of the first process that failed; its number tells a full disk from a missing permission."""
    for rank, (met, _) in sorted(error.failures.items()):
        if isinstance(met, OSError):
            return OSError(met.errno, f"{os.strerror(met.errno or errno.EIO)} (rank {rank})")
        if isinstance(met, RuntimeError):  # torch's writer of archives does not pass on why it could not write
            return OSError(_likely(met), f"rank {rank}: {str(met).splitlines()[0]}")
    return OSError(errno.EIO, str(error).splitlines()[0])


def _likely(met: RuntimeError) -> int:
    return errno.ENOSPC if "file write failed" in str(met) or "No space" in str(met) else errno.EIO


def _unreadable(folder: Path, error: BaseException) -> RunError:
    first = (str(error).splitlines() or [""])[0]
    return RunError(f"{folder} does not hold the parts of a checkpoint: {type(error).__name__}: {first}")
