"""The files of a model in Hugging Face's layout, read and written one tensor at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from torch import Tensor

Described: TypeAlias = "tuple[str, torch.dtype, tuple[int, ...]]"
"""Name, type and shape of a tensor."""
FILE_BYTES = 5 * 10**9
"""Bytes of tensors in one file, if a model needs several."""
KINDS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Names of types in safetensors files."""


def stored_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shape of every tensor in the safetensors files of a model, by name, from the headers of the files."""
    from safetensors import safe_open

    found: dict[str, list[int]] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return found


class StoredTensors:
    """The tensors in the safetensors files of a model, in the type in which they are stored.

    A tensor is a view of its file: only what is read of it takes memory, until it is dropped. A file is opened anew
    for each, since the pages of a mapped file are kept until it is closed.

    Args:
        place: the folder of a model, or one file.
    """

    def __init__(self, place: Path) -> None:
        from safetensors import safe_open

        self._paths: dict[str, Path] = {}
        for path in [place] if place.is_file() else sorted(place.glob("model*.safetensors")):
            with safe_open(path, framework="pt") as file:
                self._paths |= dict.fromkeys(file.keys(), path)

    def __getitem__(self, name: str) -> Tensor:
        from safetensors import safe_open

        with safe_open(self._paths[name], framework="pt") as file:
            found: Tensor = file.get_tensor(name)
        return found

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor with its name."""
        yield from ((name, self[name]) for name in self._paths)


def write_model_files(folder: Path, described: Sequence[Described], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write a model's tensors, which come in the order of `described`, in files of at most `FILE_BYTES`, with an index
    if there are several.

    Raises:
        OSError: a file could not be written.
    """
    files, stream = _files(described, FILE_BYTES), iter(tensors)
    place: dict[str, str] = {}
    for number, own in enumerate(files, 1):
        name = "model.safetensors" if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        write_tensors(folder / name, own, islice(stream, len(own)))
        place |= {key: name for key, *_ in own}
    if len(files) > 1:
        index = {"metadata": {"total_size": sum(map(_bytes, described))}, "weight_map": place}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def write_tensors(path: Path, described: Sequence[Described], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write tensors, which come in the order of `described`, to a safetensors file; the format's own writer needs all
    of them at once.

    Raises:
        OSError: the file could not be written.
    """
    with path.open("wb") as file:
        file.write(_header(described))
        for (name, dtype, shape), (found, tensor) in zip(described, tensors, strict=True):
            assert (found, tensor.dtype, tuple(tensor.shape)) == (name, dtype, shape), (name, found)
            # As bytes, because numpy has no bfloat16.
            file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _files(described: Sequence[Described], limit: int) -> list[list[Described]]:
    files: list[list[Described]] = [[]]
    size = 0
    for each in described:
        size += _bytes(each)
        if files[-1] and size > limit:
            files.append([])
            size = _bytes(each)
        files[-1].append(each)
    return files


def _header(described: Sequence[Described]) -> bytes:
    """Return the beginning of a safetensors file: the length of a JSON text, and the text, filled up to whole words."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in described:
        start, end = end, end + _bytes((name, dtype, shape))
        kind = KINDS[str(dtype).removeprefix("torch.")]
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes(described: Described) -> int:
    return math.prod(described[2]) * described[1].itemsize
