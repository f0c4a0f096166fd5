"""Notes of a plan on the vLLM servers that a run samples with, and refusals if they cannot serve it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress

from grouprl.config.sections import Model, Vllm
from grouprl.core.errors import GrouprlError, InputError
from grouprl.core.json_types import JsonObject
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.plan.servers import cut_notes, own_notes, running_notes, too_short, unserved, unstartable
from grouprl.policy.devices import device_name
from grouprl.rollout.servers.dialect import Way
from grouprl.rollout.servers.http_client import Refused, ServerError, Wire
from grouprl.rollout.servers.starting import wire_to
from grouprl.rollout.vllm.adapters import check_loads_adapters
from grouprl.rollout.vllm.broadcast import trainer_address
from grouprl.rollout.vllm.exchange import asked, way_of
from grouprl.rollout.vllm.requests import GENERATE
from grouprl.rollout.vllm.start_server import NO_SLEEP

TESTED = "0.32"
"""Version of vLLM that was tested."""
HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head dimensions that the attention of vLLM's CPU build supports."""
LOOKS = 5
"""Number of requests to an address to identify the servers behind it."""
WEIGHTS = {
    "shared_memory": "through memory of this machine, by its weight transfer",
    "broadcast": "over the network, by its weight transfer, to all servers at once",
    "disk": "from a folder that it reads again",
    "adapters": "as adapters that it loads from a folder, a name for each version",
}


def server_notes(run: ResolvedRun) -> Iterator[str]:
    """Say which servers will be started or asked, and how they receive weights."""
    settings = run.config.sampling.vllm
    yield from running_notes(settings, lambda address: _running(address, settings))
    if not settings.addresses:
        way = "adapters" if settings.adapters == "loaded" else settings.weights
        yield from own_notes(settings, TESTED, WEIGHTS["shared_memory" if way == "auto" else way])
    yield from cut_notes(run.config.sampling)
    if settings.sleep:
        yield "servers free their accelerator's memory from a step's samples to its new weights (vLLM's sleep mode)"
    if run.config.run.samples_apart:
        what = "continue with the new weights" if settings.in_flight == "continue" else "are finished first"
        if settings.adapters == "loaded":
            what = "are finished with the adapters that they began with"
        yield f"after new weights, unfinished completions {what}; each token keeps its version"


def server_refusals(run: ResolvedRun, longest: int) -> Iterator[str]:
    """Say why vLLM servers cannot sample for this run; prompt and completion have at most `longest` tokens."""
    yield from unserved(run, run.config.sampling.vllm, _refusals(run, longest))


def _refusals(run: ResolvedRun, longest: int) -> Iterator[str]:
    config, settings = run.config, run.config.sampling.vllm
    if settings.adapters == "loaded" and config.model.lora is None:
        yield "sampling.vllm.adapters is loaded, and the model has no adapters. Set model.lora, or take merged"
    if config.sampling.engine_settings:
        yield "sampling.engine_settings is for an engine of your own; settings of vllm belong under sampling.vllm"
    yield from _sleep_refusals(run)
    if settings.addresses:
        for address in settings.addresses:
            yield from _running_refusals(address, settings, longest)
        yield from _meeting_refusals(settings)
        yield from _names_refusals(settings)
    else:
        yield from _heads(config.model)
        yield from unstartable(settings)


def _sleep_refusals(run: ResolvedRun) -> Iterator[str]:
    """Say why servers cannot sleep while the trainer computes."""
    if not run.config.sampling.vllm.sleep:
        return
    if device_name(run.config.model.device) == "cpu":
        yield f"sampling.vllm.sleep: {NO_SLEEP}"
    if run.config.run.samples_apart:
        yield (
            "sampling.vllm.sleep: with run.async_steps servers sample while the trainer computes. Leave one out, or "
            "set run.samplers to 0"
        )


def _heads(model: Model) -> Iterator[str]:
    """Say if the CPU build's attention does not support the head size; checked only for a model made here."""
    size = model.tiny.hidden // model.tiny.heads
    if model.name == "tiny" and device_name(model.device) == "cpu" and size not in HEADS:
        yield (
            f"the CPU build of vLLM has no attention for heads of {size} dimensions (model.tiny: hidden / heads); it "
            f"has {', '.join(map(str, HEADS))}"
        )


def server_idle(run: ResolvedRun) -> Iterator[str]:
    """Say which settings of vLLM servers have no effect."""
    sampling = run.config.sampling
    if "in_flight" in sampling.vllm.model_fields_set:
        if not run.config.run.samples_apart:
            setting = "run.samplers" if run.config.run.async_steps else "run.async_steps"
            yield f"sampling.vllm.in_flight has no effect: {setting} is 0, so nothing is sampled meanwhile"
        elif sampling.vllm.adapters == "loaded":
            yield "sampling.vllm.in_flight has no effect: a completion keeps the adapters that it began with"


def _running(address: str, settings: Vllm) -> str:
    wire = wire_to(address, settings)
    version, model = _told(wire.get("/version"), "version"), _model(wire)
    name, room = _told(model, "id"), _told(model, "max_model_len")
    return (
        f"completions are sampled by vLLM {version} at {address} ({name}, {room} positions); weights reach it "
        f"{WEIGHTS[_way(wire, settings)]}"
    )


def _way(wire: Wire, settings: Vllm) -> Way:
    """Return how weights reach a running server; raises InputError if it was not started for that."""
    way = way_of(wire, settings.weights)
    if settings.adapters == "merged":
        return way
    check_loads_adapters(wire)
    return "adapters"


def _running_refusals(address: str, settings: Vllm, longest: int) -> Iterator[str]:
    try:
        wire = wire_to(address, settings)
        yield from too_short(address, _told(_model(wire), "max_model_len"), longest)
        _way(wire, settings)
        _check_tokens(wire)
    except GrouprlError as error:
        yield str(error)


def _names_refusals(settings: Vllm) -> Iterator[str]:
    """Say if an address leads to several servers, or two addresses to the same one, as far as servers tell."""
    found: dict[str, str] = {}
    for address in settings.addresses:
        names = set[str]()
        with suppress(GrouprlError):  # it does not tell, or its missing answer is already reported
            names = {asked(wire_to(address, settings), "grouprl_name") for _ in range(LOOKS)}
        if len(names) > 1:
            yield (
                f"several servers take turns at the address {address}, and each needs its weights. Name each by an "
                "address of its own"
            )
        for name in names & found.keys():
            yield f"the addresses {found[name]} and {address} are those of one server. Name it once"
        found |= dict.fromkeys(names, address)


def _meeting_refusals(settings: Vllm) -> Iterator[str]:
    """Say which servers cannot reach this machine although it sends them weights."""
    sent = []
    for address in settings.addresses:
        with suppress(GrouprlError):  # already reported of that server
            if _way(wire := wire_to(address, settings), settings) == "broadcast":
                sent.append(wire)
    try:
        if sent:
            host = settings.master_address or trainer_address([wire.address for wire in sent])
            yield from _unreached(sent, host, settings.master_port or 0)
    except GrouprlError as error:
        yield str(error)


def _unreached(wires: Sequence[Wire], host: str, port: int) -> Iterator[str]:
    remedy = "weights are sent from there. Set sampling.vllm.master_address and master_port, or let connections through"
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(place, family=family)
    except OSError as error:
        yield f"nothing can listen at {host}:{port} of this machine ({error}); {remedy}"
        return
    with listening:
        for wire in wires:
            told = asked(wire, "grouprl_reaches", host, str(listening.getsockname()[1]))
            if told != "yes":
                yield f"the server {wire.address} does not reach this machine at {host} ({told}); {remedy}"


def _check_tokens(wire: Wire) -> None:
    """Raise InputError if the server does not accept and return tokens."""
    body = {"token_ids": [0], "sampling_params": {"max_tokens": 1, "temperature": 0.0}}
    try:
        wire.post(GENERATE, body, 300.0)
    except Refused as error:
        if error.status == 401:
            raise
        raise InputError(
            str(error),
            "completions are sampled there, with tokens in and tokens out",
            "Start the server with --enable-scale-out",
        ) from None


def _model(wire: Wire) -> JsonObject:
    told = wire.get("/v1/models")
    data = told.get("data") if isinstance(told, dict) else None
    if not isinstance(data, list) or not data:
        raise ServerError(f"{wire.address} serves no model")
    return data[0]


def _told(answer: object, key: str) -> object:
    return answer.get(key, "?") if isinstance(answer, dict) else "?"
