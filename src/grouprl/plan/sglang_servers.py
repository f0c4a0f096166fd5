"""Notes of a plan on the SGLang servers that a run samples with, and refusals if they cannot serve it."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.config.sections import Sglang
from grouprl.core.errors import GrouprlError
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.plan.servers import cut_notes, own_notes, running_notes, too_short, unserved, unstartable
from grouprl.rollout.servers.starting import wire_to
from grouprl.rollout.sglang.exchange import abilities, way_to

TESTED = "0.5"
"""Series of SGLang versions of which one was tested."""
WEIGHTS = {
    "shared_memory": "through memory of this machine, by a loader of its own",
    "disk": "from a folder that it reads again",
}


def server_notes(run: ResolvedRun) -> Iterator[str]:
    """Say which servers will be started or asked, and how they receive weights."""
    sampling, settings = run.config.sampling, run.config.sampling.sglang
    yield from running_notes(settings, lambda address: _running(address, settings))
    if not settings.addresses:
        yield from own_notes(settings, TESTED, WEIGHTS["shared_memory"])
    yield from cut_notes(sampling)
    if run.config.run.samples_apart:
        yield "after new weights, unfinished completions continue with the new ones; each token keeps its version"


def server_refusals(run: ResolvedRun, longest: int) -> Iterator[str]:
    """Say why SGLang servers cannot sample for this run; prompt and completion have at most `longest` tokens."""
    settings = run.config.sampling.sglang
    yield from unserved(run, settings, _refusals(settings, longest))


def server_idle(run: ResolvedRun) -> Iterator[str]:
    """Say which settings of SGLang servers have no effect: none."""
    return iter(())


def _refusals(settings: Sglang, longest: int) -> Iterator[str]:
    for address in settings.addresses:
        yield from _running_refusals(address, settings, longest)
    if not settings.addresses:
        yield from unstartable(settings)


def _running(address: str, settings: Sglang) -> str:
    found = abilities(wire_to(address, settings))
    way = way_to(address, found, settings.weights)
    return (
        f"completions are sampled by SGLang {found.version} at {address} ({found.room} positions); weights reach it "
        f"{WEIGHTS[way]}"
    )


def _running_refusals(address: str, settings: Sglang, longest: int) -> Iterator[str]:
    try:
        found = abilities(wire_to(address, settings))
        yield from too_short(address, found.room, longest)
        way_to(address, found, settings.weights)
    except GrouprlError as error:
        yield str(error)
