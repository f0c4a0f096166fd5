"""Weights from shared memory or over the network: a weight-transfer engine for vLLM, loaded by a server.

A server gets it with `--worker-extension-cls grouprl_weights.Extension` and `--weight-transfer-config
'{"backend": "grouprl"}'`, this folder being on its PYTHONPATH. Of grouprl it imports only `grouprl_group`. The trainer
writes all weights into memory that this process can open, or sends them to all servers at once, through vLLM's own
calls: init (for a group), start, update, finish.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from grouprl_group import Group, Meeting, address_towards, joined, opened_store
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo

BACKEND = "grouprl"


class Extension:
    """Worker extension, which makes a server import this module; the trainer calls it to learn what the server can do
    (`/collective_rpc`).
    """

    def grouprl_weights(self) -> str:
        """Return the version of the protocol with the trainer."""
        return "2"

    def grouprl_name(self) -> str:
        """Return a unique name of this process."""
        return f"{socket.gethostname()}/{os.getpid()}"

    def grouprl_device(self) -> str:
        """Return the kind of device that holds the weights."""
        return str(self.device.type)  # type: ignore[attr-defined]

    def grouprl_reads(self, path: str) -> str:
        """Return "yes" if this process can open a file, else the reason why not."""
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            return str(error)
        return "yes"

    def grouprl_reaches(self, host: str, port: str) -> str:
        """Return "yes" if this process can connect to an address, else the reason why not."""
        try:
            socket.create_connection((host, int(port)), 10.0).close()
        except OSError as error:
            return str(error)
        return "yes"


@dataclass
class Init(WeightTransferInitInfo):
    """The address at which the members of a process group meet."""

    host: str
    port: int
    name: str
    first: int
    """Rank of the first worker of this server."""
    size: int
    seconds: float
    backend: str


@dataclass
class WeightUpdate(WeightTransferUpdateInfo):
    """Places of all weights of one version, in memory or in the data that is sent.

    A place is the name, type, shape, first byte and number of bytes of a tensor, in this order.
    """

    path: str = ""
    """Path of the memory as a file of this machine; "" if weights are sent."""
    places: list[list[Any]] | None = None
    checksum: int = 0
    """CRC-32 of all bytes in memory."""
    parts: list[list[list[Any]]] | None = None
    """The places of tensors in each part that is sent."""


class TransferEngine(WeightTransferEngine[Init, WeightUpdate]):
    """Engine that loads a version from memory, or one that is sent. A version in memory is refused before loading if
    its checksum differs.
    """

    init_info_cls = Init
    update_info_cls = WeightUpdate
    _group: Group | None = None
    _open = False
    """Whether an update was begun and not finished."""

    def init_transfer_engine(self, init_info: Init) -> None:
        """Join the process group of a trainer, in place of any earlier one."""
        self.shutdown()
        config, seconds = self.parallel_config, init_info.seconds
        rank = init_info.first + config.data_parallel_index * config.world_size + config.rank
        host = address_towards(init_info.host, init_info.port)
        store = opened_store(init_info.host, init_info.port, seconds, trainer=False)
        meeting = Meeting(init_info.name, rank, init_info.size, host, seconds, init_info.backend)
        self._group, self._rank = joined(store, meeting), rank
        self._sent_to = self.device if init_info.backend == "nccl" else torch.device("cpu")

    def start_weight_update(self) -> None:
        """Prepare the layers for weights in the form of a checkpoint."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        if self._open:  # layers that hold a part of other weights would mix it with these
            finalize_layerwise_reload(self.model, self.model_config)
        self._open = True
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: WeightUpdate) -> None:
        """Load every tensor. Raises ValueError if the checksum differs, BrokenOff if tensors do not arrive."""
        if update_info.parts is None:
            self._read(update_info)
        else:
            self._receive(update_info.parts)

    def _read(self, update_info: WeightUpdate) -> None:
        file = os.open(update_info.path, os.O_RDONLY)
        try:
            held = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)  # a private view: torch asks for one that can be written
        finally:
            os.close(file)
        places = update_info.places or []
        end = max((start + size for *_, start, size in places), default=0)
        found = zlib.crc32(memoryview(held)[:end])
        if found != update_info.checksum:
            raise ValueError(f"the weights in {update_info.path} have the checksum {found}, not {update_info.checksum}")
        self.model.load_weights(_tensors(torch.frombuffer(held, dtype=torch.uint8), places, 0))

    def _receive(self, parts: list[list[list[Any]]]) -> None:
        if self._group is None:
            raise RuntimeError("weights were sent to a server that has not joined a group")
        loading = 0.0
        for places in parts:
            start, end = places[0][3], places[-1][3] + places[-1][4]
            flat = torch.empty(end - start, dtype=torch.uint8, device=self._sent_to)
            self._group.broadcast(flat)
            begun = time.monotonic()
            self.model.load_weights(_tensors(flat, places, start))
            loading += time.monotonic() - begun
        self._group.store.set(f"loading/{self._rank}", f"{loading:.3f}")

    def finish_weight_update(self) -> None:
        """Convert the layers into the form in which they compute."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        self._open = False
        if self.device.type == "cpu":
            self._pack_heads()

    def _pack_heads(self) -> None:
        """Pack the output layers again: one that shares the embedding's weights got no new ones, and would keep its old
        product.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

        for module in self.model.modules():
            if isinstance(module, VocabParallelEmbedding):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        """Leave the process group."""
        if self._group is not None:
            self._group.close()
            self._group = None


def _tensors(flat: torch.Tensor, places: list[list[Any]], begin: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in `flat`, whose first byte has the number `begin`."""
    for name, kind, shape, start, size in places:
        piece = flat[start - begin : start - begin + size]
        yield name, piece.view(getattr(torch, kind)).reshape(shape)


WeightTransferEngineFactory.register_engine(BACKEND, TransferEngine)
