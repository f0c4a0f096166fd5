"""What a plan says of the workers that a cluster places, and where it could not place them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from grouprl.core.errors import GrouprlError
from grouprl.core.leader import current_ranks, ranks_requested
from grouprl.orchestrator.placed.cluster_info import ClusterFacts, look
from grouprl.orchestrator.placed.host import Kind
from grouprl.orchestrator.placed.placement import placed_counts
from grouprl.orchestrator.placed.ray_host import bundle_of, words
from grouprl.orchestrator.placed.reward import reward_hello
from grouprl.orchestrator.placed.stage import stage_hello
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.policy.kinds import policy_kind
from grouprl.rollout.engines import LOCAL

WHAT: Mapping[Kind, str] = {
    "sampler": "sampler(s), each with a copy of the model",
    "reward": "reward worker(s)",
    "environment": "environment worker(s)",
}
SETTINGS = ("rewards", "environments", "cpus", "gpus", "strategy", "timeout", "start_timeout", "restarts")
"""Settings that need a cluster."""


@dataclass(frozen=True)
class PlacingPlan:
    """What a plan says of a run's cluster."""

    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()


def placing_plan(run: ResolvedRun) -> PlacingPlan:
    """Look at the cluster that a run names, where it names one, and say what will be placed on it, and what cannot."""
    idle = tuple(_idle(run))
    wrong = tuple(_contradictions(run))
    if run.config.cluster.ray == "off" or wrong:
        return PlacingPlan(wrong, (), idle)
    try:
        facts = look(run.config.cluster.ray)
    except GrouprlError as error:
        return PlacingPlan((str(error),), (), idle)
    short = tuple(_no_room(run, facts))
    return PlacingPlan(short, () if short else tuple(_notes(run, facts)), idle)


def _contradictions(run: ResolvedRun) -> Iterator[str]:
    """Say what no cluster could do."""
    config = run.config
    cluster, placed = config.cluster, cluster_named(run)
    shared = cluster.samplers > 1 or (placed and cluster.samplers)
    if shared and config.sampling.engine == LOCAL and policy_kind(config.model.name) is not None:
        yield (
            f"cluster.samplers is {cluster.samplers}: they have copies of a language model, and model is "
            f"{config.model.name}. Set cluster.samplers to {0 if placed else 1}; environments and rewards can be placed"
        )
    several = current_ranks() is not None or ranks_requested() > 1
    if several and cluster.samplers > 1 and not placed:
        yield f"cluster.samplers is {cluster.samplers} in several processes that share one model. Set it to 1"
    if not placed:
        return
    if several:
        yield (
            "cluster.ray in several processes that share one model (grouprl launch, torchrun): their ranks sample, "
            "and Ray does not place ranks. Start one process, or set cluster.ray to off"
        )
    if config.run.async_steps and config.run.samplers > 1:
        yield (
            f"run.samplers is {config.run.samplers}, and each would place workers of its own. Set it to 1: "
            "cluster.samplers says how many sample at the same time"
        )
    if (
        cluster.samplers
        and not cluster.gpus
        and config.model.device.startswith("cuda")
        and config.sampling.engine == LOCAL
    ):
        yield f"model.device is {config.model.device}, and samplers reserve no GPU: set cluster.gpus, such as 1"
    if not placed_counts(run):
        yield (
            "cluster.ray names a cluster, and nothing of this run is placed on it: set cluster.samplers, rewards or "
            "environments to 1 or more, or cluster.ray to off"
        )
    yield from _cannot_send(run)


def _cannot_send(run: ResolvedRun) -> Iterator[str]:
    counts = placed_counts(run)
    try:
        if "reward" in counts:
            reward_hello(run.reward, run.config.reward)
        if "environment" in counts:
            stage_hello(run.task, run.config.environment)
    except GrouprlError as error:
        yield str(error)


def _no_room(run: ResolvedRun, facts: ClusterFacts) -> Iterator[str]:
    """Say of what the cluster has too little, whoever uses it."""
    counts, cluster = placed_counts(run), run.config.cluster
    needed: dict[str, float] = {}
    for kind, count in counts.items():
        bundle = bundle_of(cluster, kind)
        for name, amount in bundle.items():
            needed[name] = needed.get(name, 0.0) + count * amount
        if facts.places(bundle) < count:
            yield (
                f"cluster: {count} × {words(bundle)} ({kind}) are wanted, and the nodes have room for "
                f"{facts.places(bundle)}. {facts.words()}"
            )
    for name, amount in needed.items():
        if amount > facts.total(name) + 1e-9:
            there = f"{facts.total(name):g}. {facts.words()}"
            yield f"cluster: workers want {amount:g} {name}s in all, and there are {there}"


def _notes(run: ResolvedRun, facts: ClusterFacts) -> Iterator[str]:
    counts, cluster = placed_counts(run), run.config.cluster
    how = "spread over the nodes" if cluster.strategy == "spread" else "packed onto few nodes"
    placed = "; ".join(
        f"{count} {WHAT[kind]}: {words(bundle_of(cluster, kind))} each" for kind, count in counts.items()
    )
    yield f"{facts.words()}. Placed there, {how}: {placed}. The learner stays in the process that is started"
    where = "the sampling process" if run.config.run.async_steps else "the trainer"
    here = [what for kind, what in (("sampler", "sampling"), ("reward", "the reward")) if kind not in counts]
    if here:
        yield f"not placed, with {where}: {' and '.join(here)}"
    for name in ("CPU", "GPU"):
        wanted = sum(count * bundle_of(cluster, kind).get(name, 0.0) for kind, count in counts.items())
        if wanted > facts.free.get(name, 0.0) + 1e-9:
            yield (
                f"of the cluster's {facts.total(name):g} {name}s {facts.free.get(name, 0.0):g} are free now, and the "
                f"workers want {wanted:g}: the run waits for them, {cluster.start_timeout:g} s at most"
            )


def _idle(run: ResolvedRun) -> Iterator[str]:
    config = run.config
    cluster, given = config.cluster, config.cluster.model_fields_set
    if not cluster_named(run):
        yield from (f"cluster.{name} has no effect: cluster.ray is off" for name in SETTINGS if name in given)
        if cluster.samplers > 1 and (config.run.async_steps or config.sampling.engine != LOCAL):
            why = (
                "run.samplers counts the processes that sample ahead"
                if config.run.async_steps
                else "another engine samples"
            )
            yield f"cluster.samplers has no effect without Ray: {why}"
        return
    if config.sampling.engine != LOCAL and "samplers" in given and cluster.samplers:
        yield f"cluster.samplers has no effect: sampling.engine is {config.sampling.engine}, which is placed by itself"
    if "gpus" in given and cluster.gpus and "sampler" not in placed_counts(run):
        yield "cluster.gpus has no effect: no sampler is placed"


def cluster_named(run: ResolvedRun) -> bool:
    """Whether the run names a cluster."""
    return run.config.cluster.ray != "off"
