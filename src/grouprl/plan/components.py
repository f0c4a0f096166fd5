"""The components of a run's reward, as far as they are known before it begins."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.algorithms.data_part import data_parts
from grouprl.algorithms.method import Method
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.plan.try_reward import RewardTrial, components_of
from grouprl.records.examples import Example

PREFIX = "rewards."
"""Beginning of the names of Batch fields that are components of the reward."""


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


def components_read(method: Method) -> Iterator[str]:
    """Yield the components that a method reads and none of its parts fills."""
    filled = {name for part in data_parts(method.parts()) for name in part.supplies()}
    for name in method.needs():
        if name.startswith(PREFIX) and name not in filled:
            yield name.removeprefix(PREFIX)


def known_components(run: ResolvedRun, trial: RewardTrial, examples: list[Example]) -> tuple[str, ...] | None:
    """Return the components that rewards of a few prompts have; None: episodes state them, or no reward was tried."""
    stored = run.row_kind.components_of(run.task, examples)
    if stored is not None:
        return stored
    if run.row_kind.acts or run.config.reward.judge is not None:
        return None
    return components_of(run.reward, run.task) if trial.components is None else trial.components
