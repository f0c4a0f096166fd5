"""The components of a run's reward, as far as they are known before it begins."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.orchestrator.stated_components import STATED_BY, components_read
from grouprl.plan.try_reward import RewardTrial, components_of
from grouprl.records.examples import Example


def component_refusals(run: ResolvedRun, trial: RewardTrial, examples: list[Example]) -> Iterator[str]:
    """Refuse a method that reads a component which the reward does not have."""
    wanted = list(components_read(run.method))
    known = known_components(run, trial, examples) if wanted else None
    for name in wanted if known is not None else ():
        assert known is not None
        has = f"has {', '.join(known)}" if known else "has no components"
        if name not in known:
            yield (
                f"{run.method.name} reads the component '{name}' of the reward, but that of '{run.task.name}' {has}. "
                "Take a task or a reward that states it (return {name: number, …}), or name another component"
            )


def component_notes(run: ResolvedRun) -> Iterator[str]:
    """Say which components episodes have to state: it is not known before they are played."""
    if not run.row_kind.acts:
        return
    for name in components_read(run.method):
        yield (
            f"{run.method.name} reads the component '{name}' of the reward. Whether episodes state it is not known "
            f"before they are played; the first step ends the run if none does ({STATED_BY})"
        )


def known_components(run: ResolvedRun, trial: RewardTrial, examples: list[Example]) -> tuple[str, ...] | None:
    """Return the components that rewards of a few prompts have; None: episodes state them, or no reward was tried."""
    stored = run.row_kind.components_of(run.task, examples)
    if stored is not None:
        return stored
    if run.row_kind.acts or run.config.reward.judge is not None:
        return None
    return components_of(run.reward, run.task) if trial.components is None else trial.components
