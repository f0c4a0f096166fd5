"""What may be changed of a run that has begun, and how the change is written down."""

from __future__ import annotations

from collections.abc import Sequence

from grouprl.config.run import Config, load_config
from grouprl.core.errors import InputError
from grouprl.storage.run_folder import RunFolder

MAY_CHANGE = (
    "steps",
    "eval.every",
    "run.checkpoint_every",
    "run.keep",
    "run.rollouts_every",
    "reward.workers",
    "reward.timeout",
    "environment.workers",
    "environment.timeout",
)
"""Settings of a run that may be changed as it is resumed: how long it goes on, and what no sample depends on."""


def changed_config(run: RunFolder, changes: Sequence[str]) -> Config:
    """Return the configuration of a run with changes `key=value`.

    Raises:
        InputError: a setting that may not be changed.
    """
    for change in changes:
        key = change.partition("=")[0]
        if key not in MAY_CHANGE:
            raise InputError(
                f"{run.path} --resume with --set {change}",
                f"of a run that has begun may be changed: {', '.join(MAY_CHANGE)}",
                f"Leave it out, or start a new run: grouprl train {run.config} --folder … --set {change}",
            )
    return load_config(str(run.config), changes)


def check_steps(config: Config, run: RunFolder, done: int) -> None:
    """Refuse to end a run before where it is.

    Raises:
        InputError: fewer steps than are done.
    """
    if config.steps < done:
        raise InputError(
            f"steps = {config.steps}, but {run.path} has made {done}",
            "a run can be extended, not cut",
            f"Set steps to {done} or more",
        )


def said(before: Config, after: Config) -> list[str]:
    """Say what an extension changes besides what was asked for: the learning rate follows its schedule anew."""
    if before.steps == after.steps or after.optim.schedule == "constant":
        return []
    return [
        f"the run has {after.steps} steps now instead of {before.steps}; optim.schedule {after.optim.schedule} is that "
        "of the new number, so the learning rate changes at this point"
    ]
