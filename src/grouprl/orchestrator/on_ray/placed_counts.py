"""The number of workers of each kind that a run places on its cluster. This loads nothing that samples or trains."""

from __future__ import annotations

from grouprl.orchestrator.on_ray.worker_host import Kind
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.rollout.engines import IN_FILES, LOCAL


def placed_counts(run: ResolvedRun) -> dict[Kind, int]:
    """Return how many workers of each kind a run places on its cluster; empty if it places none.

    A reward is not placed if no function is called (stored rewards, environments that score). A judge is not placed
    because it only waits for its endpoint, and neither are environments whose episodes are compared within their
    group.
    """
    config, rows = run.config, run.row_kind
    cluster = config.cluster
    if cluster.ray == "off":
        return {}
    scored = config.reward.replaced if rows.acts else rows.samples
    counts: dict[Kind, int] = {}
    if config.sampling.engine == LOCAL and rows.samples:
        counts["sampler"] = cluster.samplers
    if scored and not getattr(run.reward, "sees_groups", False):
        counts["reward"] = cluster.rewards
    if rows.acts and not getattr(run.task, "scores_groups", False):
        counts["environment"] = cluster.environments
    return {kind: count for kind, count in counts.items() if count}


def whole_copies(run: ResolvedRun, here: int) -> int:
    """Return how many of the `here` ranks on this device hold a whole copy of the weights. If ranks sample, all do.
    None does for a reward model, or if servers take the weights as they are gathered. Otherwise the first rank does,
    for workers of a cluster or an engine of the user's.
    """
    if run.scores:
        return 0
    if ranks_sample(run):
        return here
    return 0 if run.config.sampling.engine in IN_FILES else 1


def ranks_sample(run: ResolvedRun) -> bool:
    """Return whether each of several ranks samples from a whole copy: no other process samples, or only evaluation
    does.
    """
    config = run.config
    return config.sampling.engine == LOCAL and (config.run.samples_apart or "sampler" not in placed_counts(run))
