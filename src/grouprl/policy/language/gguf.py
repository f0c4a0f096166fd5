"""Models from GGUF files, converted once into an ordinary transformers folder that is kept in a cache.

transformers itself reads the file and turns quantised weights back into float32; the folder holds these weights, the
tokenizer and the chat template, and works with every other program that takes such folders.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from grouprl.core.errors import InputError, MissingExtra, raised
from grouprl.policy.language.hub import folder_meant
from grouprl.storage.run_folder import digest, in_words, replacing, settle

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

SUFFIX = ".gguf"
MAGIC = b"GGUF"
"""The first bytes of every such file (ggml's specification of GGUF, "File Structure")."""
CACHE = "GROUPRL_CACHE"
"""Environment variable with the cache folder; by default grouprl in XDG_CACHE_HOME or ~/.cache."""
DIGITS = 16
"""Number of digits of a file's SHA-256 in the name of the folder that it is converted into."""
DAMAGED = "Copy or download it again"


def is_gguf(spec: str | Path) -> bool:
    """Return whether `spec` names a GGUF file, by its ending or by the first bytes of an existing file."""
    path = Path(spec).expanduser()
    return (path.suffix.lower() == SUFFIX and not path.is_dir()) or (path.is_file() and _begins(path) == MAGIC)


def as_folder(spec: str | Path) -> str:
    """Return `spec`, or if it names a GGUF file the folder of the converted model, converting it the first time.

    Raises:
        InputError: a file that does not exist, is truncated, damaged or not a GGUF file, or a model that transformers
            cannot read.
        MissingExtra: the file has to be converted, and the extra `gguf` is not installed.
        RunError: the folder cannot be written (a full disk, a cache without permission).
    """
    if not is_gguf(spec):
        return str(spec)
    path = Path(spec).expanduser()
    _check(path)
    folder = converted_folder(path)
    if not folder.is_dir():
        with in_words(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent / ".lock"):
            settle(folder.parent)
            if not folder.is_dir():
                _convert(path, folder)
    return str(folder)


def converted_folder(path: Path) -> Path:
    """Return the path of the folder for a GGUF file, which need not exist yet: its name holds the hash of the file's
    bytes.
    """
    return _cache() / "gguf" / f"{path.stem}-{digest(path)[:DIGITS]}"


def _cache() -> Path:
    if stated := os.environ.get(CACHE):
        return Path(stated).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grouprl"


def _check(path: Path) -> None:
    if not path.is_file():
        raise InputError(
            f"There is no file {path}", "a model may be a GGUF file", folder_meant(str(path)) or "Check the path"
        )
    begins = _begins(path)
    if begins != MAGIC:
        rule = f"it begins with {MAGIC!r}, and this file of {path.stat().st_size:,} bytes with {begins!r}"
        raise InputError(f"{path} is not a GGUF file", rule, DAMAGED)


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC))
    except OSError as error:
        raise InputError(f"The file {path} cannot be read: {error.strerror}", "", "Check its permissions") from error


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Wait until no other process converts a file; the system releases the lock of a process that dies."""
    with in_words(lock):
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _convert(path: Path, folder: Path) -> None:
    """Convert the file and write the folder, completely or not at all."""
    for package in ("gguf", "accelerate"):
        _need(package)
    log.warning("Converting %s into the folder %s, once.", path, folder)
    model, tokenizer = _read(path)
    with replacing(folder) as temporary:
        _plain(model).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


def _need(package: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingExtra(package, "gguf", "A model in a GGUF file")


def _read(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the model, in float32, and the tokenizer of a file."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _check_whole(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        return AutoModelForCausalLM.from_pretrained(
            str(path.parent), dtype=torch.float32, gguf_file=path.name
        ), tokenizer
    except Exception as error:  # the exceptions of transformers for unsupported files are not documented
        raise InputError(
            f"transformers cannot read {path}: {raised(error)}",
            "it supports only some architectures",
            "Use the folder of the model that the file was made from",
        ) from error


def _check_whole(path: Path) -> None:
    """Check that a file holds everything that its header announces."""
    from gguf import GGUFReader

    try:
        GGUFReader(path)
    except Exception as error:  # numpy raises different exceptions, depending on the damage
        rule = f"its header does not fit its {path.stat().st_size:,} bytes ({raised(error)})"
        raise InputError(f"{path} is truncated or damaged", rule, DAMAGED) from error


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model without its quantisation mark, because of which transformers would refuse to save it."""
    stated = model.config.to_dict()
    stated.pop("quantization_config", None)
    with torch.device("meta"):
        plain = type(model)(type(model.config).from_dict(stated))
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain
