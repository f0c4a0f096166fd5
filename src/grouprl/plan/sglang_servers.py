"""What a plan says of the servers of SGLang that a run samples with, and where they could not serve it."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.config.sections import Sglang
from grouprl.core.errors import GrouprlError, InputError
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.plan.servers import installed
from grouprl.policy.kinds import policy_kind
from grouprl.rollout.engines import SGLANG
from grouprl.rollout.sglang.exchange import Abilities, abilities, way_to
from grouprl.rollout.vllm.process import port_taken, program, wire_to

TESTED = "0.5"
"""The versions of SGLang that this was tested with one of."""
WEIGHTS = {
    "shared_memory": "through memory of this machine, by a loader of its own",
    "disk": "from a folder that it reads again",
}


def server_notes(run: ResolvedRun) -> Iterator[str]:
    """Say what will be started, or who will be asked, and how weights get there."""
    sampling, settings = run.config.sampling, run.config.sampling.sglang
    if sampling.engine != SGLANG:
        return
    for address in settings.addresses:
        try:
            yield _running(address, settings)
        except GrouprlError:
            continue  # said among the refusals
    if not settings.addresses:
        yield from _own(settings)
    if sampling.top_p < 1 or sampling.top_k:
        yield (
            "the servers' log-probs are those behind sampling.top_k and top_p, the trainer's are not: logp_gap_mean "
            "shows the difference, and importance weights correct for it"
        )
    if run.config.run.async_steps:
        yield "when weights are exchanged, completions in the making go on with new ones; each token keeps its version"


def server_refusals(run: ResolvedRun, longest: int) -> Iterator[str]:
    """Say why servers of SGLang cannot sample for this run, `longest` tokens at most in prompt and completion."""
    config, settings = run.config, run.config.sampling.sglang
    if config.sampling.engine != SGLANG:
        return
    if policy_kind(config.model.name) is not None:
        yield f"sampling.engine sglang samples from language models, and model is {config.model.name}"
        return
    if config.model.agents != "shared":
        yield "sampling.engine sglang serves one policy, and model.agents gives agents weights of their own"
    if run.method.sampling is not None:
        yield (
            f"{run.method.sampling.name} changes how tokens are sampled from step to step, which servers of SGLang do "
            "not. Take sampling.engine local"
        )
    for address in settings.addresses:
        yield from _running_refusals(address, settings, longest)
    if not settings.addresses:
        yield from _own_refusals(settings)


def server_idle(run: ResolvedRun) -> Iterator[str]:
    """Say which settings of servers have no effect."""
    sampling = run.config.sampling
    if sampling.engine != SGLANG and "sglang" in sampling.model_fields_set:
        yield f"sampling.sglang has no effect: sampling.engine is {sampling.engine}"


def _own(settings: Sglang) -> Iterator[str]:
    count, version = settings.servers, installed(settings.command[0], "sglang")
    which = f"SGLang {version}" if version else "SGLang"
    each = "a server" if count == 1 else f"{count} servers"
    yield (
        f"the run starts {each} of {which} ({' '.join(settings.command)} serve …) with a copy of the model and "
        f"memory of its own; weights reach it {WEIGHTS['shared_memory']}"
    )
    if version and not version.startswith(f"{TESTED}."):
        yield f"SGLang {version} is installed; this was tested with {TESTED}"


def _own_refusals(settings: Sglang) -> Iterator[str]:
    try:
        program(settings.command, "sglang", "SGLang")
    except InputError as error:
        yield str(error)
    if settings.port is not None:
        taken = [port for port in range(settings.port, settings.port + settings.servers) if port_taken(port)]
        yield from (f"sampling.sglang.port: the port {port} is taken. Leave it out for a free one" for port in taken)


def _running(address: str, settings: Sglang) -> str:
    found = abilities(wire_to(address, settings))
    way = way_to(address, found, settings.weights)
    return (
        f"completions are sampled by SGLang {found.version} at {address} ({found.room} positions); weights reach it "
        f"{WEIGHTS[way]}"
    )


def _running_refusals(address: str, settings: Sglang, longest: int) -> Iterator[str]:
    try:
        found: Abilities = abilities(wire_to(address, settings))
        if isinstance(found.room, int) and longest > found.room:
            yield f"the server {address} has room for {found.room} positions, and this run needs {longest}"
        way_to(address, found, settings.weights)
    except GrouprlError as error:
        yield str(error)
