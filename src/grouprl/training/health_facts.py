"""Facts about a run that the health report needs in addition to its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from grouprl.algorithms.method import Method
from grouprl.config.rates import fastest, reach_of_step
from grouprl.config.run import Config
from grouprl.monitor.history import HealthFacts
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.policy.kinds import policy_kind
from grouprl.policy.language.models_of import widths_of
from grouprl.protocols import Trainable


def health_facts_of(run: ResolvedRun, exact: bool, policy: Trainable) -> HealthFacts:
    """Return the facts for the health report that follow from the run's settings and its policy."""
    config = run.config
    facts = replace(health_facts_of_run(run, exact), adapters=config.model.lora is not None)
    widths = widths_of(policy)
    if run.method.update is not None or widths is None or config.optim.name != "adamw":
        return facts  # no rule predicts the steps at this rate, or a part sets the rate itself
    reach = facts.updates_per_rollout * reach_of_step(1.0, *widths, config.model.lora)
    return replace(facts, reach=reach, fast=fastest(widths[0]))


def health_facts_of_run(run: ResolvedRun, exact: bool) -> HealthFacts:
    """Return the facts for the health report that follow from a run's settings and its task."""
    found = health_facts(run.config, run.method, run.max_new_tokens, exact)
    return replace(found, updates_per_rollout=run.updates_per_rollout)


def health_facts(config: Config, method: Method, max_tokens: int, exact: bool) -> HealthFacts:
    """Return the facts for the health report that follow from the run's settings."""
    weights = [p.settings().get("coef") for p in (*method.regularize, *method.reward_transform) if "kl" in p.name]
    return HealthFacts(
        completions=config.batch.prompts * config.batch.group_size,
        groups_per_update=config.batch.prompts / config.batch.minibatches,
        updates_per_rollout=config.updates_per_rollout * method.phases,
        exact_sampler=exact and (not config.run.async_steps or config.run.proximal == "recompute"),
        async_steps=config.run.async_steps,
        grouped=config.batch.group_size > 1 and "past.q" not in method.needs() and not _paid_otherwise(method),
        waits=0 if method.update is None else method.update.first_step(),
        clips="old_bt" in method.objective.needs(),
        kl_weight=cast("float | None", weights[0]) if weights else None,
        refill=method.refill is not None,
        refill_max_rounds=getattr(method.refill, "max_rounds", 0),
        filters=tuple(p.name for p in method.filter if not p.guards),
        max_tokens=max_tokens,
        blind=tuple(part.blind for part in method.parts() if part.blind),
        actions=policy_kind(config.model.name) is not None,
        segments=isinstance(config.task, Mapping) and config.task.get("horizon") is not None,
    )


def _paid_otherwise(method: Method) -> bool:
    """Return whether something else stands in place of the reward, such as certainty, which differs within a group."""
    return any(part.blind for part in method.reward_transform)
