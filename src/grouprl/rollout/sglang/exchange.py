"""New weights for one server, by SGLang's own calls: pause, update, continue; and what a server can do of that."""

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
"""Seconds in which a server says how it was started: it asks its scheduler."""
AS_A_CHECKPOINT = "auto"
"""How a folder is read: own servers start without weights, and would read none."""


@dataclass(frozen=True)
class Abilities:
    """How a server was started, as far as it matters here."""

    seeds: bool
    """Whether the seeds of requests count."""
    most: int
    """Tokens behind top-k and top-p whose log-probs it tells."""
    loader: bool
    """Whether it takes weights from memory."""
    ranks: int
    """Processes that hold a part of the weights each."""
    version: str
    room: object
    """Positions that prompt and completion have together."""


def abilities(wire: Wire) -> Abilities:
    """Return how a server was started.

    Raises:
        ServerError: it does not say.
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
        InputError: its seeds do not count, or it takes no weights from memory.
    """
    if not found.seeds:
        raise InputError(
            f"the server {address} ignores seeds",
            "a completion is a function of its request and the weights: it can be requested again",
            "Start it with --enable-deterministic-inference",
        )
    if setting == "shared_memory" and not found.loader:
        raise InputError(
            f"the server {address} does not take weights from memory",
            f"it is started with PYTHONPATH={PLUGIN} and --custom-weight-loader {LOADER}",
            "Start it so, or set sampling.sglang.weights to disk",
        )
    return "shared_memory" if found.loader and setting != "disk" else "disk"


def named(wire: Wire, run: str) -> str:
    """Return what a server calls the weights that it has; raises Stale for those of no or another run."""
    return label_at(wire, "/model_info", run)


def exchange(
    wire: Wire, label: str, *, run: str, seconds: float, memory: WrittenWeights | None, folder: str, ranks: int
) -> None:
    """Give a server the weights in `memory`, or else those in `folder`, under the name `label`.

    Completions in the making wait, and go on with the new weights, what was read computed anew. A server whose exchange
    fails stays paused, its weights marked as unfinished: it samples nothing with half of them.

    Raises:
        ServerError: it failed.
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
    """Have each of a server's processes load the weights; SGLang says that it is done, not how it went."""
    with tempfile.TemporaryFile("w+") as report:
        path = f"/proc/{os.getpid()}/fd/{report.fileno()}"
        wire.post("/update_weights_from_tensor", memory_body(memory, ranks, path), seconds)
        said = report.read().splitlines()
    if said != ["loaded"] * ranks:
        why = next((each for each in said if each != "loaded"), "it cannot open this process's memory")
        raise Gone(f"the server {wire.address} did not load the weights ({why})")


def memory_body(memory: WrittenWeights, ranks: int, report: str) -> JsonObject:
    """Return what a server is sent, which hands it to the loader in each of its `ranks` processes.

    `report` is the file to which each of them appends a line: how it went.
    """
    told = {**memory.message(), "report": report}
    message = torch.frombuffer(bytearray(json.dumps(told).encode()), dtype=torch.uint8)
    packed = base64.b64encode(pickle.dumps([("grouprl", message)])).decode()
    return {"serialized_named_tensors": [packed] * ranks, "load_format": LOADER}


def _name(wire: Wire, label: str, seconds: float) -> None:
    """Tell a server what its weights are called; it would abort completions in the making if it were not told."""
    wire.post("/update_weight_version", {"new_version": label, "abort_all_requests": False}, seconds)


def _begin(wire: Wire, seconds: float) -> None:
    """Begin an update; one that somebody else began and left is ended first."""
    try:
        wire.post("/begin_weight_update", {}, seconds)
    except Refused as error:
        if "already open" not in str(error):
            raise
        wire.post("/end_weight_update", {}, seconds)
        wire.post("/begin_weight_update", {}, seconds)
