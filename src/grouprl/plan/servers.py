"""Notes and refusals of a plan that are the same for sampling servers of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from grouprl.config.sections import Sampling, Servers
from grouprl.core.errors import GrouprlError, InputError
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.policy.kinds import policy_kind
from grouprl.rollout.servers.starting import port_taken, program


def running_notes(settings: Servers, described: Callable[[str], str]) -> Iterator[str]:
    """Say which server samples at each address; an address without an answer is reported among the refusals."""
    for address in settings.addresses:
        with suppress(GrouprlError):
            yield described(address)


def own_notes(settings: Servers, tested: str, way: str) -> Iterator[str]:
    """Say what will be started; `tested` begins the versions that were tested, `way` says how weights arrive."""
    count, version = settings.servers, installed(settings)
    which = f"{settings.kind} {version}" if version else settings.kind
    each = "a server" if count == 1 else f"{count} servers"
    yield (
        f"the run starts {each} of {which} ({' '.join(settings.command)} serve …) with a copy of the model and "
        f"memory of its own; weights reach it {way}"
    )
    if version and not version.startswith(f"{tested}."):
        yield f"{settings.kind} {version} is installed; this was tested with {tested}"


def cut_notes(sampling: Sampling) -> Iterator[str]:
    """Say how the log-probs of servers differ from the trainer's under top-k and top-p."""
    if sampling.top_p < 1 or sampling.top_k:
        yield (
            "the servers' log-probs are those after sampling.top_k and top_p, the trainer's are not: logp_gap_mean "
            "shows the difference, and importance weights correct for it"
        )


def unserved(run: ResolvedRun, settings: Servers, others: Iterator[str]) -> Iterator[str]:
    """Say why no server can sample for this run, then yield `others`, unless there is no language model."""
    config, name = run.config, settings.engine
    if policy_kind(config.model.name) is not None:
        yield f"sampling.engine {name} samples from language models, and model is {config.model.name}"
        return
    if config.model.agents != "shared":
        yield f"sampling.engine {name} serves one policy, and model.agents gives agents weights of their own"
    if run.method.sampling is not None:
        yield (
            f"{run.method.sampling.name} changes how tokens are sampled from step to step, which servers of "
            f"{settings.kind} do not. Take sampling.engine local"
        )
    yield from others


def unstartable(settings: Servers) -> Iterator[str]:
    """Say why the run cannot start servers: the program is missing, or there is no free port."""
    try:
        program(settings)
    except InputError as error:
        yield str(error)
    if settings.port is not None:
        taken = [port for port in range(settings.port, settings.port + settings.servers) if port_taken(port)]
        yield from (f"{settings.key}.port: the port {port} is taken. Leave it out for a free one" for port in taken)


def too_short(address: str, room: object, longest: int) -> Iterator[str]:
    """Say if a server's `room` of positions is too small for `longest` tokens in prompt and completion."""
    if isinstance(room, int) and longest > room:
        yield f"the server {address} has room for {room} positions, and this run needs {longest}"


def installed(settings: Servers) -> str:
    """Return the version of a server's program, without starting it; "" if it cannot be determined."""
    try:
        folder = Path(program(settings)).absolute().parent.parent
    except InputError:
        return ""
    name = settings.engine
    found = sorted(folder.glob(f"lib/python*/site-packages/{name}-*.dist-info"))
    return found[0].name.removeprefix(f"{name}-").removesuffix(".dist-info") if found else ""
