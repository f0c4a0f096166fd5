"""Weights out of shared memory: a weight-transfer engine for vLLM, loaded by a server in an environment of its own.

A server gets it with `--worker-extension-cls grouprl_weights.Extension` and `--weight-transfer-config
'{"backend": "grouprl"}'`, this folder being on its PYTHONPATH. Nothing of grouprl is imported here. The trainer writes
all weights into memory that this process can open, and each of vLLM's own calls does its part: start, update, finish.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo

BACKEND = "grouprl"


class Extension:
    """Named so that a server imports this module; it answers whether it did (`/collective_rpc`)."""

    def grouprl_weights(self) -> str:
        """Return the version of what is agreed with the trainer."""
        return "1"


@dataclass
class Init(WeightTransferInitInfo):
    """Nothing is agreed beforehand."""


@dataclass
class WeightUpdate(WeightTransferUpdateInfo):
    """Where all weights of one version lie."""

    path: str
    """The memory, as a file of this machine."""
    places: list[list[Any]]
    """Name, type, shape, first byte and number of bytes of each tensor, one behind the other."""
    checksum: int
    """CRC-32 of all bytes."""


class SharedMemoryEngine(WeightTransferEngine[Init, WeightUpdate]):
    """Loads a version that lies whole in memory; one that differs from its checksum is refused unloaded."""

    init_info_cls = Init
    update_info_cls = WeightUpdate

    def init_transfer_engine(self, init_info: Init) -> None:
        """There is nobody to meet."""

    def start_weight_update(self) -> None:
        """Get the layers ready for weights as they lie in a checkpoint."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: WeightUpdate) -> None:
        """Load every tensor; raises ValueError where they are not those that were written."""
        file = os.open(update_info.path, os.O_RDONLY)
        try:
            held = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)  # a private view: torch asks for one that can be written
        finally:
            os.close(file)
        end = max((start + size for *_, start, size in update_info.places), default=0)
        found = zlib.crc32(memoryview(held)[:end])
        if found != update_info.checksum:
            raise ValueError(f"the weights in {update_info.path} have the checksum {found}, not {update_info.checksum}")
        self.model.load_weights(_tensors(held, update_info.places))

    def finish_weight_update(self) -> None:
        """Bring the layers into the form in which they compute."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            self._pack_heads()

    def _pack_heads(self) -> None:
        """Pack the heads anew: one that shares the embedding's weights was given none, and keeps its old product."""
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

        for module in self.model.modules():
            if isinstance(module, VocabParallelEmbedding):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        """Nothing is held."""


def _tensors(held: mmap.mmap, places: list[list[Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, kind, shape, start, size in places:
        dtype = getattr(torch, kind)
        count = size // torch.empty(0, dtype=dtype).element_size()
        yield name, torch.frombuffer(held, dtype=dtype, count=count, offset=start).reshape(shape)


WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryEngine)
