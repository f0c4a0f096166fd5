"""Low-rank adapters that servers load themselves (vLLM's dynamic LoRA), each version under its own name."""

from __future__ import annotations

import shutil
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.policy.lora import is_adapted
from grouprl.rollout.servers.http_client import Refused, Stale, Wire
from grouprl.rollout.servers.weights import InParts, base_tensors
from grouprl.storage.model_files import write_model_files
from grouprl.storage.run_folder import in_words, replacing

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM supports; adapters of another rank use the next larger one."""
KEPT, HELD, AT_ONCE = 4, 8, 2
"""Number of versions that are kept, of adapters that a server holds, and of adapters used in one step of a server."""
SWITCH = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
"""Environment variable that enables the calls for adapters."""


def adapter_rank(policy: CausalPolicy) -> int:
    """Return the LoRA rank that a server must support.

    Raises:
        InputError: there are no adapters, or vLLM cannot load them.
    """
    if not is_adapted(policy.model):
        raise InputError(
            "sampling.vllm.adapters = 'loaded'", "the model has no adapters", "Set model.lora, or take adapters: merged"
        )
    ranks = [layer.weight.shape[0] for m in policy.model.modules() for layer in getattr(m, "lora_A", {}).values()]
    others = [name for name, each in policy.model.named_parameters() if each.requires_grad and "lora_" not in name]
    if others or max(ranks, default=0) > RANKS[-1]:
        what = f"{others[0]} is trained" if others else f"adapters have the rank {max(ranks)}"
        raise InputError(what, f"servers load only adapters up to rank {RANKS[-1]}", "Take adapters: merged")
    return next(rank for rank in RANKS if rank >= max(ranks))


def lora_words(rank: int) -> list[str]:
    """Return the arguments of a server that loads adapters."""
    words = ["--enable-lora", "--max-lora-rank", str(rank)]
    return [*words, "--max-loras", str(AT_ONCE), "--max-cpu-loras", str(HELD)]


def write_base(policy: CausalPolicy, folder: Path) -> None:
    """Write the weights without the adapters as a checkpoint.

    Raises:
        RunError: the disk is full, or the folder cannot be written to.
    """
    from safetensors.torch import save_file

    with in_words(folder):
        if isinstance(policy, InParts):
            given = policy.checkpoint_entries(merged=False)
            write_model_files(folder, [each.described for each in given], policy.checkpoint_tensors(given))
            return
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in base_tensors(policy)}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})


class AdapterFolders:
    """The last versions of the adapters, each in a folder that is either complete or missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._labels: deque[str] = deque()

    def write(self, policy: CausalPolicy, label: str) -> None:
        """Write the current adapters; the oldest version becomes outdated.

        Raises:
            RunError: the disk is full, or the folder cannot be written to.
        """
        with replacing(self.path(label)) as temporary:
            policy.save_adapters(temporary)
        if label not in self._labels:
            self._labels.append(label)

    def path(self, label: str) -> Path:
        """Return the folder of a version."""
        return self.folder / label

    @property
    def outdated(self) -> list[str]:
        """Versions that are no longer needed by any request."""
        return list(self._labels)[:-KEPT]

    def forget(self) -> None:
        """Remove the folders of outdated versions."""
        for label in self.outdated:
            self._labels.popleft()
            shutil.rmtree(self.path(label), ignore_errors=True)

    def close(self) -> None:
        """Remove all folders."""
        for label in self._labels:
            shutil.rmtree(self.path(label), ignore_errors=True)


def load_adapter(wire: Wire, label: str, path: Path, seconds: float) -> None:
    """Let a server load adapters under the name `label`, in place of any with that name.

    Raises:
        ServerError: the server does not load them.
    """
    body = {"lora_name": label, "lora_path": str(path)}
    try:
        wire.call(LOAD, body, seconds)
    except Refused as error:
        if "already been loaded" not in str(error):
            raise
        unload_adapter(wire, label, seconds)
        wire.call("/reset_prefix_cache", None, seconds)
        wire.call(LOAD, body, seconds)


def unload_adapter(wire: Wire, label: str, seconds: float) -> None:
    """Let a server unload adapters by name; requests that use them are finished first."""
    with suppress(Refused):  # the server has already unloaded it
        wire.call(UNLOAD, {"lora_name": label}, seconds)


def check_loads_adapters(wire: Wire) -> None:
    """Raise InputError if a server does not load adapters."""
    try:
        wire.call(LOAD, {"lora_name": "", "lora_path": ""}, 10.0)
    except Refused as error:
        if error.status == 400:
            return  # a server that loads adapters complains of missing names
        if error.status == 401:
            raise
    words = " ".join([*(f"{k}={v}" for k, v in SWITCH.items()), "vllm serve …", *lora_words(RANKS[2])])
    raise InputError(
        f"the server {wire.address} does not load adapters",
        "its calls for adapters are enabled only at the start",
        f"Start it as {words} (the rank is an example), or take sampling.vllm.adapters: merged",
    )


def known_adapter(error: Refused, label: str) -> Stale | Refused:
    """Return the meaning of a refusal: Stale if the server no longer has the adapters, else the refusal itself."""
    if error.status == 404 and label in str(error):
        return Stale(f"the server has no adapters {label!r}: it was restarted, or they are too old")
    return error
