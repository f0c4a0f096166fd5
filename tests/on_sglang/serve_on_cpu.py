"""SGLang's own server on a machine without an accelerator, for `make sglang`; its words are those of `sglang`.

SGLang's CPU kernels are built from source for AMX, and its wheels want CUDA. What a Llama needs runs in torch; this
script stands in for the rest, before SGLang is imported, in the server's process and in those that it starts:

- `sgl_kernel`: names can be imported and fail when they are called, but for the hash behind seeded sampling, which is
  MurmurHash3 (32 bits) as SGLang's own kernel for accelerators computes it;
- `torchaudio`, and the operators of `torchvision`, whose builds want another torch: nothing here looks or listens;
- seeded sampling (`--enable-deterministic-inference`), which SGLang offers with attention kernels of accelerators
  alone, is let through with attention in torch, without the matrix products that do not depend on the batch.

The HTTP server, the scheduler, the prefix cache, the model, the sampler and the weight updates are SGLang's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import torch


class Kernels(ModuleType):
    """Any name can be imported from it; who calls one is told that it is not there."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_: object, **__: object) -> object:
            raise NotImplementedError(f"sgl_kernel.{name} is compiled, and is not there")

        return missing


def murmur_hash32(seed: torch.Tensor, position: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Return MurmurHash3 (x86, 32 bits, seed 0) of 16 bytes: seed_n (8 of them), position_n, column_m, as uint32."""
    seed_n = seed.view(torch.int64).numpy().view(np.uint64)
    blocks = [seed_n & 0xFFFFFFFF, seed_n >> np.uint64(32), position.numpy().astype(np.uint64)]
    columns = [block[:, None] for block in blocks] + [column.numpy().astype(np.uint64)[None, :]]
    hash_nm = np.zeros((1, 1), dtype=np.uint64)
    for block in columns:
        mixed = _rotated(block * np.uint64(0xCC9E2D51), 15) * np.uint64(0x1B873593) & np.uint64(0xFFFFFFFF)
        hash_nm = (_rotated(hash_nm ^ mixed, 13) * np.uint64(5) + np.uint64(0xE6546B64)) & np.uint64(0xFFFFFFFF)
    hash_nm = hash_nm ^ np.uint64(16)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hash_nm = ((hash_nm ^ (hash_nm >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return torch.from_numpy(hash_nm.astype(np.uint32))


def _rotated(value: np.ndarray, by: int) -> np.ndarray:
    low = value & np.uint64(0xFFFFFFFF)
    return (low << np.uint64(by) | low >> np.uint64(32 - by)) & np.uint64(0xFFFFFFFF)


def stand_in(name: str, module: ModuleType) -> None:
    """Let `import name` find `module`."""
    module.__spec__ = ModuleSpec(name, None)
    sys.modules[name] = module


def prepare() -> torch.library.Library:
    """Put the stand-ins in place; what is returned holds the kernel and must be kept."""
    os.environ |= {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
    stand_in("sgl_kernel", Kernels("sgl_kernel"))
    stand_in("torchaudio", ModuleType("torchaudio"))
    stand_in("torchvision._meta_registrations", ModuleType("torchvision._meta_registrations"))
    kernels = torch.library.Library("sgl_kernel", "FRAGMENT")
    kernels.define("murmur_hash32_cpu(Tensor seed, Tensor position, Tensor column) -> Tensor")
    kernels.impl("murmur_hash32_cpu", murmur_hash32, "CPU")
    import sglang.srt.batch_invariant_ops as products
    from sglang.srt.arg_groups import choices

    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
    products.enable_batch_invariant_mode = lambda: None
    return kernels


ON_CPU = ["--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
"""The parts of SGLang that compute in torch."""
ROOM = ["--max-total-tokens", "16384", "--max-running-requests", "256"]
"""Its cache would take most of the machine's memory."""
KERNELS = prepare()  # the processes that the server starts import this file, and need all of it too

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args([*ON_CPU, *ROOM, *sys.argv[2:]]))  # behind the word serve
