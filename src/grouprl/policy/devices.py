"""Device and type of a model's weights, and precision of its products, by name.

A plan needs no more than the names, and on a machine without a GPU they are known without importing torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import torch

from grouprl.core.errors import InputError, suggest

Precision = Literal["float32", "onednn", "mixed"]
"""The precision of products of float32 matrices; see `grouprl.policy.precision`."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""Bytes of a number of each type that weights can have."""
DRIVERS = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")
"""Files in /dev of which Linux has at least one if there is a GPU that torch calls CUDA: NVIDIA's own, those of its
systems on a chip, AMD's, and that of Windows' subsystem for Linux."""


def device_name(device: str) -> str:
    """Return the device meant by "auto", "cpu", "cuda", "cuda:1" …

    Raises:
        InputError: torch knows no such device, or this machine has no GPU.
    """
    if device == "auto":
        return "cuda" if has_gpu() else "cpu"
    if device == "cpu":
        return device
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise InputError(
            f"device={device!r}", "A device must be 'auto' or a torch device", "Use auto, cpu or cuda"
        ) from error
    if place.type == "cuda" and not has_gpu():
        raise InputError(f"device={device!r}", "This machine has no usable CUDA GPU", "Use device: auto")
    return str(place)


def has_gpu() -> bool:
    """Return whether torch can use a CUDA GPU here; torch is asked only where there is a driver."""
    known = sys.platform == "linux" and not any(any(Path("/dev").glob(name)) for name in DRIVERS)
    return not known and torch.cuda.is_available()


def dtype_name(dtype: str, device: str, precision: str = "float32", *, pretrained: bool = True) -> str:
    """Return the type of weights meant by `dtype` on a device named by `device_name`.

    "auto" is bfloat16 for a pretrained model on a GPU that has it. It is float32 with mixed precision, and for weights
    that are new: there are few of them, and in float32 they compute on a GPU what they compute on a CPU.

    Raises:
        InputError: weights cannot have this type.
    """
    if dtype == "auto":
        halved = pretrained and precision != "mixed" and device.startswith("cuda") and torch.cuda.is_bf16_supported()
        return "bfloat16" if halved else "float32"
    if dtype not in BYTES:
        raise InputError(f"dtype={dtype!r}", "No weights can have this type", suggest(dtype, ["auto", *BYTES]))
    return dtype


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a type, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def exact_in(dtype: str, precision: str = "float32") -> bool:
    """Return whether sampling with weights of this type and products of this precision gives the trainer's log-probs up
    to rounding.
    """
    return dtype in ("float32", "float64") and precision != "mixed"
