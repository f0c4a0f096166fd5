"""New weights for one server, by vLLM's own calls: pause, start, update, finish, resume."""

from __future__ import annotations

import os
import tempfile

from grouprl.core.errors import InputError, shortened
from grouprl.rollout.servers.dialect import Way
from grouprl.rollout.servers.http_client import Garbled, Gone, Refused, Wire
from grouprl.rollout.servers.weight_version import UNFINISHED, label_at, label_of
from grouprl.rollout.servers.weights import WrittenWeights
from grouprl.rollout.vllm.start_server import PLUGIN, TRANSFER

PAUSES = {"continue": "keep", "finish": "wait"}
"""vLLM's names of pauses: unfinished requests wait and are read again, or are finished first."""
AGREED = "2"
"""The version of `server_plugin/grouprl_weights.py` that this trainer requires."""
ASKED_SECONDS = 30.0
"""Seconds within which a worker must answer a question about its abilities."""


def named(wire: Wire, run: str) -> str:
    """Return the label of a server's weights. Raises Stale if they belong to no run or to another one."""
    return label_at(wire, "/weight_info", run)


def way_of(wire: Wire, setting: str) -> Way:
    """Return how weights reach a running server; `setting` is `sampling.vllm.weights`.

    Raises:
        InputError: the server was not started with support for new weights.
    """
    try:
        wire.get("/weight_info")
    except Refused:
        raise InputError(
            f"the server {wire.address} cannot be given weights",
            "its calls for new weights are enabled only in its development mode",
            "Start it with VLLM_SERVER_DEV_MODE=1",
        ) from None
    if setting == "disk":
        return "disk"
    lacking = _lacking(wire)
    if not lacking and setting != "broadcast":
        lacking = _cannot_open(wire)
        if not lacking:
            return "shared_memory"
        if setting == "auto":
            return "broadcast"
    if not lacking:
        return "broadcast"
    if setting == "auto":
        return "disk"
    way = "from memory" if setting == "shared_memory" else "by broadcast"
    raise InputError(
        f"the server {wire.address} does not take weights {way}: {lacking}",
        f"it must be started with PYTHONPATH={PLUGIN} and {' '.join(TRANSFER[:-1])} '{TRANSFER[-1]}'",
        "Start it so, with the files of this version of grouprl, or set sampling.vllm.weights to disk",
    )


def _lacking(wire: Wire) -> str:
    """Return why a server does not support the weight transfer of grouprl's plugin; "" if it does."""
    try:
        spoken = asked(wire, "grouprl_weights")
    except (Refused, Gone):
        return "it was started without grouprl_weights"
    return "" if spoken == AGREED else f"its grouprl_weights is of version {spoken}, this one of {AGREED}"


def _cannot_open(wire: Wire) -> str:
    """Return why a server cannot open memory of this process; "" if it can."""
    with tempfile.TemporaryFile() as memory:
        told = asked(wire, "grouprl_reads", f"/proc/{os.getpid()}/fd/{memory.fileno()}")
    return "" if told == "yes" else f"it cannot open this process's memory ({told})"


def asked(wire: Wire, method: str, *words: str) -> str:
    """Return the answer of a server's first worker to a call of `server_plugin/grouprl_weights.py`.

    Raises:
        Garbled: the answer is not a string.
        ServerError: there is no answer.
    """
    told = wire.post("/collective_rpc", {"method": method, "args": list(words)}, ASKED_SECONDS)
    results = told.get("results") if isinstance(told, dict) else None
    if not isinstance(results, list) or not results or not isinstance(results[0], str):
        raise Garbled(f"{wire.address} answers {method} with {shortened(told)}")
    return results[0]


def wake(wire: Wire, what: str, seconds: float) -> None:
    """Wake a part of a sleeping server, `what`: first "weights", and last "kv_cache", after which it samples."""
    wire.post(f"/wake_up?tags={what}", seconds=seconds)


def exchange(
    wire: Wire,
    label: str,
    *,
    run: str,
    in_flight: str,
    seconds: float,
    memory: WrittenWeights | None,
    folder: str | None,
    asleep: bool = False,
) -> None:
    """Give a server the weights in `memory`, or else those in `folder`, under the name `label`.

    A server whose exchange fails stays paused, its weights marked as unfinished: it samples nothing with half of them.
    A server that is asleep counts as paused, and is awake afterwards.

    Raises:
        ServerError: the exchange failed.
    """
    if asleep:
        wake(wire, "weights", seconds)
    else:
        pause(wire, in_flight, seconds)
    wire.post("/update_weight_version", {"new_version": label_of(run, UNFINISHED)}, seconds)
    if memory is not None:
        _start(wire, seconds)
        wire.post("/update_weights", {"update_info": memory.message()}, seconds)
        wire.post("/finish_weight_update", {"weight_version": label}, seconds)
    else:
        wire.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}}, seconds)
        wire.post("/update_weight_version", {"new_version": label}, seconds)
    if asleep:
        wake(wire, "kv_cache", seconds)
    wire.post("/resume", seconds=seconds)


def begin(wire: Wire, run: str, in_flight: str, seconds: float) -> None:
    """Pause a server and prepare it for weights that are sent to it; see `exchange`."""
    pause(wire, in_flight, seconds)
    wire.post("/update_weight_version", {"new_version": label_of(run, UNFINISHED)}, seconds)
    _start(wire, seconds)


def finish(wire: Wire, label: str, seconds: float) -> None:
    """Let a server continue with the weights that were sent to it, under the name `label`."""
    wire.post("/finish_weight_update", {"weight_version": label}, seconds)
    wire.post("/resume", seconds=seconds)


def pause(wire: Wire, in_flight: str, seconds: float) -> None:
    """Pause the sampling of a server."""
    wire.post(f"/pause?mode={PAUSES[in_flight]}", seconds=seconds)


def _start(wire: Wire, seconds: float) -> None:
    """Begin an update; first end one that another client began and abandoned."""
    try:
        wire.post("/start_weight_update", seconds=seconds)
    except Gone as error:
        if "already active" not in str(error):
            raise
        wire.post("/finish_weight_update", seconds=seconds)
        wire.post("/start_weight_update", seconds=seconds)
