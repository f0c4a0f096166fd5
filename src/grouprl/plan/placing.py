"""Notes of a plan on the workers that a cluster places, and refusals if it cannot place them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from grouprl.config.sections import Placing
from grouprl.core.errors import GrouprlError
from grouprl.orchestrator.on_ray.cluster_info import ClusterFacts, look
from grouprl.orchestrator.on_ray.placed_counts import placed_counts
from grouprl.orchestrator.on_ray.ray_host import bundle_of, short_of, words
from grouprl.orchestrator.on_ray.remote_environments import stage_hello
from grouprl.orchestrator.on_ray.reward import reward_hello
from grouprl.orchestrator.on_ray.worker_host import Kind
from grouprl.orchestrator.rank_refusals import refusals_alone
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.policy.kinds import policy_kind
from grouprl.processes.current_ranks import current_ranks, launched, placed_by, ranks_requested
from grouprl.rollout.engines import LOCAL

WHAT: Mapping[Kind, str] = {
    "sampler": "sampler{s}, each with a copy of the model",
    "reward": "reward worker{s}",
    "environment": "environment worker{s}",
}
LEARNER_SETTINGS = ("learner_cpus", "learner_gpus")
SETTINGS = (
    *("rewards", "environments", "cpus", "gpus", "strategy", "timeout", "start_timeout", "restarts"),
    *LEARNER_SETTINGS,
)
"""Settings that need a cluster."""


@dataclass(frozen=True)
class PlacingPlan:
    """The plan's findings on a run's cluster, as sentences."""

    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()


def placing_plan(run: ResolvedRun) -> PlacingPlan:
    """Inspect the cluster that a run names, if any, and say what will be placed on it, and what cannot be."""
    idle = tuple(_idle(run))
    wrong = tuple(_contradictions(run))
    if run.config.cluster.ray == "off" or wrong:
        return PlacingPlan(wrong, tuple(_processes(run)), idle)
    try:
        facts = look(placed_by() or run.config.cluster.ray)
    except GrouprlError as error:
        return PlacingPlan((str(error),), (), idle)
    short = tuple(_no_room(run, facts))
    return PlacingPlan(short, () if short else tuple(_notes(run, facts)), idle)


def ranks_meant(run: ResolvedRun) -> int:
    """Return the number of processes that share the model: those running, or those that `grouprl train` will start."""
    ranks = current_ranks()
    return ranks.count if ranks is not None else 1 if launched() else max(1, run.config.cluster.learners)


def _processes(run: ResolvedRun) -> Iterator[str]:
    """Say how many processes train if no cluster places workers, and what one would refuse: a plan cannot know how the
    run will be started.
    """
    if cluster_named(run) or launched() or current_ranks() is not None:
        return
    if (count := run.config.cluster.learners) > 1:
        how = f"as grouprl launch -n {count} starts them"
        yield f"cluster.learners: {count} processes of this machine share the model, {how}"
    else:
        yield from refusals_alone(run.config.model)


def _contradictions(run: ResolvedRun) -> Iterator[str]:
    """Say which of the settings contradict each other on any cluster."""
    config = run.config
    cluster, placed = config.cluster, cluster_named(run)
    shared = cluster.samplers > 1 or (placed and cluster.samplers)
    if shared and config.sampling.engine == LOCAL and policy_kind(config.model.name) is not None:
        yield (
            f"cluster.samplers is {cluster.samplers}: they have copies of a language model, and model is "
            f"{config.model.name}. Set cluster.samplers to {0 if placed else 1}; environments and rewards can be placed"
        )
    yield from _learners(cluster)
    if not placed:
        return
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
    if cluster.learners and not cluster.learner_gpus and config.model.device.startswith("cuda"):
        yield f"model.device is {config.model.device}, and learners reserve no GPU: set cluster.learner_gpus, such as 1"
    if not placed_counts(run) and not cluster.learners:
        yield (
            "cluster.ray names a cluster, and nothing of this run is placed on it: set cluster.learners, samplers, "
            "rewards or environments to 1 or more, or cluster.ray to off"
        )
    yield from _cannot_send(run)


def _learners(cluster: Placing) -> Iterator[str]:
    """Say if a launcher started a different number of processes than `cluster.learners` requires."""
    if not cluster.learners or not launched() or placed_by():
        return
    given = f"cluster.learners is {cluster.learners} under grouprl launch or torchrun"
    if cluster.ray != "off":
        yield f"{given}: grouprl train places the learners itself. Start it alone, or set cluster.learners to 0"
    elif cluster.learners != ranks_requested():
        yield f"{given}, which started {ranks_requested()}. Set it to {ranks_requested()} or 0, or start grouprl train"


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
    """Say which resources the cluster lacks, even if nothing else uses it."""
    learners: dict[Kind, int] = {"learner": run.config.cluster.learners} if run.config.cluster.learners else {}
    yield from short_of(learners | placed_counts(run), run.config.cluster, facts)


def _notes(run: ResolvedRun, facts: ClusterFacts) -> Iterator[str]:
    counts, cluster = placed_counts(run), run.config.cluster
    how = "spread over the nodes" if cluster.strategy == "spread" else "packed onto few nodes"
    placed = [
        f"{count} {WHAT[kind].format(s='s' * (count != 1))}: {words(bundle_of(cluster, kind))} each"
        for kind, count in counts.items()
    ]
    learner = "The learner stays in the process that is started"
    if cluster.learners:
        own = words(bundle_of(cluster, "learner"))
        which = (
            "1 learner, which trains"
            if cluster.learners == 1
            else f"{cluster.learners} learners, which share the model and train"
        )
        placed = [f"{which}: {own} each", *placed]
        learner = "The process that is started watches them"
    yield f"{facts.words()}. Placed there, {how}: {'; '.join(placed)}. {learner}"
    where = "the sampling process" if run.config.run.samples_apart else "the trainer"
    here = [what for kind, what in (("sampler", "sampling"), ("reward", "the reward")) if kind not in counts]
    if here:
        yield f"not placed, with {where}: {' and '.join(here)}"
    learners: dict[Kind, int] = {} if placed_by() else {"learner": cluster.learners}
    to_come = learners | counts
    for name in ("CPU", "GPU"):
        wanted = sum(count * bundle_of(cluster, kind).get(name, 0.0) for kind, count in to_come.items())
        if wanted > facts.free.get(name, 0.0) + 1e-9:  # shares of a GPU are sums of fractions
            yield (
                f"of the cluster's {facts.total(name):g} {name}s {facts.free.get(name, 0.0):g} are free now, and the "
                f"workers want {wanted:g}: the run waits for them, {cluster.start_timeout:g} s at most"
            )


def _idle(run: ResolvedRun) -> Iterator[str]:
    config = run.config
    cluster, given = config.cluster, config.cluster.model_fields_set
    if not cluster_named(run):
        yield from (f"cluster.{name} has no effect: cluster.ray is off" for name in SETTINGS if name in given)
        if cluster.samplers > 1 and (config.run.samples_apart or config.sampling.engine != LOCAL):
            why = (
                "run.samplers counts the processes that sample ahead"
                if config.run.samples_apart
                else "another engine samples"
            )
            yield f"cluster.samplers has no effect without Ray: {why}"
        return
    if config.sampling.engine != LOCAL and "samplers" in given and cluster.samplers:
        yield f"cluster.samplers has no effect: sampling.engine is {config.sampling.engine}, which is placed by itself"
    if "gpus" in given and cluster.gpus and "sampler" not in placed_counts(run):
        yield "cluster.gpus has no effect: no sampler is placed"
    if not cluster.learners:
        yield from (
            f"cluster.{name} has no effect: cluster.learners is 0" for name in LEARNER_SETTINGS if name in given
        )


def cluster_named(run: ResolvedRun) -> bool:
    """Return whether the run names a cluster."""
    return run.config.cluster.ray != "off"
