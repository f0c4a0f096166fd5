"""New weights for one server, by SGLang's own calls: pause, update, continue; and the abilities of a server for it."""

from __future__ import annotations

import base64
import json
import os
import pickle
import tempfile
from dataclasses import dataclass

import torch

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.rollout.servers.dialect import Way
from grouprl.rollout.servers.http_client import Garbled, Gone, Refused, Wire
from grouprl.rollout.servers.weight_version import UNFINISHED, label_at, label_of
from grouprl.rollout.servers.weights import WrittenWeights
from grouprl.rollout.sglang.start_server import LOADER, PLUGIN

WITHIN = 60.0
"""Seconds within which a server must say how it was started; it has to ask its scheduler."""
AS_A_CHECKPOINT = "auto"
"""Load format of folders: own servers start with a format that reads no weights."""


@dataclass(frozen=True)
class Abilities:
    """Options with which a server was started, as far as they matter here."""

    seeds: bool
    """Whether the server uses the seeds of requests."""
    most: int
    """Largest number of tokens kept by top-k and top-p for which the server returns log-probs."""
    loader: bool
    """Whether the server takes weights from memory."""
    ranks: int
    """Number of processes that each hold a part of the weights."""
    version: str
    room: object
    """Largest number of positions of prompt and completion together."""


def abilities(wire: Wire) -> Abilities:
    """Return the options with which a server was started.

    Raises:
        ServerError: the server does not return them.
    """
    told, models = wire.get("/server_info", WITHIN), wire.get("/v1/models")
    if not isinstance(told, dict) or not isinstance(told.get("version"), str):
        raise Garbled(f"{wire.address} does not say how it was started")
    listed = models.get("data") if isinstance(models, dict) else None
    model = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    most, ranks, loaders = (told.get(key) for key in ("sampling_mask_max_tokens", "tp_size", "custom_weight_loader"))
    return Abilities(
        seeds=told.get("enable_deterministic_inference") is True,
        most=most if isinstance(most, int) else 0,
        loader=LOADER in (loaders or ()),
        ranks=ranks if isinstance(ranks, int) else 1,
        version=told["version"],
        room=model.get("max_model_len"),
    )


def way_to(address: str, found: Abilities, setting: str) -> Way:
    """Return how weights reach a server; `setting` is `sampling.sglang.weights`.

    Raises:
        InputError: the server ignores seeds, or does not take weights from memory.
    """
    if not found.seeds:
        raise InputError(
            f"the server {address} ignores seeds",
            "a completion must be a function of its request and the weights, so that it can be requested again",
            "Start it with --enable-deterministic-inference",
        )
    if setting == "shared_memory" and not found.loader:
        raise InputError(
            f"the server {address} does not take weights from memory",
            f"it must be started with PYTHONPATH={PLUGIN} and --custom-weight-loader {LOADER}",
            "Start it so, or set sampling.sglang.weights to disk",
        )
    return "shared_memory" if found.loader and setting != "disk" else "disk"


def named(wire: Wire, run: str) -> str:
    """Return the label of a server's weights. Raises Stale if they belong to no run or to another one."""
    return label_at(wire, "/model_info", run)


def exchange(
    wire: Wire, label: str, *, run: str, seconds: float, memory: WrittenWeights | None, folder: str, ranks: int
) -> None:
    """Give a server the weights in `memory`, or else those in `folder`, under the name `label`.

    Unfinished completions wait and continue with the new weights; their keys and values are recomputed. A server whose
    exchange fails stays paused, its weights marked as unfinished: it samples nothing with half of them.

    Raises:
        ServerError: the exchange failed.
    """
    wire.post("/pause_generation", {"mode": "retract"}, seconds)
    _name(wire, label_of(run, UNFINISHED), seconds)
    if memory is not None:
        _begin(wire, seconds)
        _load(wire, memory, ranks, seconds)
        wire.post("/end_weight_update", {}, seconds)
    else:
        wire.post("/update_weights_from_disk", {"model_path": folder, "load_format": AS_A_CHECKPOINT}, seconds)
    _name(wire, label, seconds)
    wire.post("/continue_generation", {}, seconds)


def _load(wire: Wire, memory: WrittenWeights, ranks: int, seconds: float) -> None:
    """Let each of a server's processes load the weights; SGLang returns without saying whether it succeeded."""
    with tempfile.TemporaryFile("w+") as report:
        path = f"/proc/{os.getpid()}/fd/{report.fileno()}"
        wire.post("/update_weights_from_tensor", memory_body(memory, ranks, path), seconds)
        said = report.read().splitlines()
    if said != ["loaded"] * ranks:
        why = next((each for each in said if each != "loaded"), "it cannot open this process's memory")
        raise Gone(f"the server {wire.address} did not load the weights ({why})")


def memory_body(memory: WrittenWeights, ranks: int, report: str) -> JsonObject:
    """Return the request with which a server calls the loader in each of its `ranks` processes.

    `report` is the file to which each of them appends a line with its result.
    """
    told = {**memory.message(), "report": report}
    message = torch.frombuffer(bytearray(json.dumps(told).encode()), dtype=torch.uint8)
    packed = base64.b64encode(pickle.dumps([("grouprl", message)])).decode()
    return {"serialized_named_tensors": [packed] * ranks, "load_format": LOADER}


def _name(wire: Wire, label: str, seconds: float) -> None:
    """Set the label of a server's weights, in such a way that it does not abort unfinished completions."""
    wire.post("/update_weight_version", {"new_version": label, "abort_all_requests": False}, seconds)


def _begin(wire: Wire, seconds: float) -> None:
    """Begin an update; first end one that another client began and abandoned."""
    try:
        wire.post("/begin_weight_update", {}, seconds)
    except Refused as error:
        if "already open" not in str(error):
            raise
        wire.post("/end_weight_update", {}, seconds)
        wire.post("/begin_weight_update", {}, seconds)
