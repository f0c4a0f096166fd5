"""New weights for one server, by vLLM's own calls: pause, start, update, finish, resume."""

from __future__ import annotations

import re
from typing import Literal

from grouprl.core.errors import InputError
from grouprl.rollout.vllm.http_client import Gone, Refused, Stale, Wire
from grouprl.rollout.vllm.process import INSIDE, TRANSFER
from grouprl.rollout.vllm.weights import WrittenWeights

UNFINISHED = "unfinished"
"""Version of weights in the middle of an exchange; nothing is sampled with them."""
PAUSES = {"continue": "keep", "finish": "wait"}
"""What vLLM calls it: requests in the making wait and are read anew, or are answered first."""
Way = Literal["shared_memory", "disk", "adapters"]


def label_of(run: str, version: int | str) -> str:
    """Return what a server is told that its weights are called."""
    return f"{run}.{version}"


def version_of(label: str, run: str) -> int | None:
    """Return the version that a label of this run names; None for any other."""
    found = re.fullmatch(r"-?[0-9]{1,18}", label.removeprefix(f"{run}."))
    return int(found[0]) if found and label.startswith(f"{run}.") else None


def named(wire: Wire, run: str) -> str:
    """Return what a server calls the weights that it has.

    Raises:
        Stale: they are none of this run.
    """
    told = wire.get("/weight_info")
    label = told.get("weight_version") if isinstance(told, dict) else None
    if not isinstance(label, str) or version_of(label, run) is None:
        raise Stale(f"the server {wire.address} has no weights of this run: it has {label!r}")
    return label


def way_of(wire: Wire, setting: str) -> Way:
    """Return how weights reach a running server; `setting` is `sampling.vllm.weights`.

    Raises:
        InputError: it was not started so that it can be given any.
    """
    try:
        wire.get("/weight_info")
    except Refused:
        raise InputError(
            f"the server {wire.address} cannot be given weights",
            "its calls for that are there in its development mode",
            "Start it with VLLM_SERVER_DEV_MODE=1",
        ) from None
    if setting == "disk":
        return "disk"
    try:
        wire.post("/collective_rpc", {"method": "grouprl_weights"})
    except (Refused, Gone):
        if setting == "shared_memory":
            raise InputError(
                f"the server {wire.address} does not take weights from memory",
                f"it is started with PYTHONPATH={INSIDE} and {' '.join(TRANSFER[:-1])} '{TRANSFER[-1]}'",
                "Start it so, or set sampling.vllm.weights to disk",
            ) from None
        return "disk"
    return "shared_memory"


def exchange(
    wire: Wire,
    label: str,
    *,
    run: str,
    in_flight: str,
    seconds: float,
    memory: WrittenWeights | None,
    folder: str | None,
) -> None:
    """Give a server the weights in `memory`, or else those in `folder`, under the name `label`.

    A server whose exchange fails stays paused, its weights marked as unfinished: it samples nothing with half of them.

    Raises:
        ServerError: it failed.
    """
    wire.post(f"/pause?mode={PAUSES[in_flight]}", seconds=seconds)
    wire.post("/update_weight_version", {"new_version": label_of(run, UNFINISHED)}, seconds)
    if memory is not None:
        _start(wire, seconds)
        wire.post("/update_weights", {"update_info": memory.message()}, seconds)
        wire.post("/finish_weight_update", {"weight_version": label}, seconds)
    else:
        wire.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}}, seconds)
        wire.post("/update_weight_version", {"new_version": label}, seconds)
    wire.post("/resume", seconds=seconds)


def _start(wire: Wire, seconds: float) -> None:
    """Begin an update; one that somebody else began and left is ended first."""
    try:
        wire.post("/start_weight_update", seconds=seconds)
    except Gone as error:
        if "already active" not in str(error):
            raise
        wire.post("/finish_weight_update", seconds=seconds)
        wire.post("/start_weight_update", seconds=seconds)
