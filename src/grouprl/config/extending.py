"""Changes to a run that has begun: which settings may change, and how a change is recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from grouprl.config.run import Config, load_config, with_absolute_paths
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping
from grouprl.storage.run_folder import RunFolder

MAY_CHANGE = (
    "steps",
    "eval.every",
    "run.checkpoint_every",
    "run.keep",
    "run.rollouts_every",
    "run.record_updates",
    "run.check_model",
    "run.trackers",
    "run.rank_timeout",
    "model.tensor_parallel",
    "model.context_parallel",
    "model.offload",
    "reward.workers",
    "reward.timeout",
    "environment.workers",
    "environment.timeout",
    "cluster.ray",
    "cluster.rewards",
    "cluster.environments",
    "cluster.learners",
    "cluster.learner_cpus",
    "cluster.learner_gpus",
    "cluster.cpus",
    "cluster.gpus",
    "cluster.strategy",
    "cluster.timeout",
    "cluster.start_timeout",
    "cluster.restarts",
)
"""Settings that may be changed when a run is resumed: its length, and settings that no sample depends on."""
PLACED = re.compile(r"(?P<head>(?:\w+:)?)(?P<folder>(?:/[^/\n]+)*)/(?P<name>[^/\n]+)")
"""An absolute path, perhaps behind the name of a task."""


def changed_config(run: RunFolder, changes: Sequence[str]) -> Config:
    """Return the configuration of a run with changes `key=value`.

    Raises:
        InputError: a setting may not be changed.
    """
    moved_folders(run, changes)
    return load_config(str(run.config), changes)


def moved_folders(run: RunFolder, changes: Sequence[str]) -> dict[str, str]:
    """Return the new folder of each moved folder, by its old one, found from the files that `changes` rename.

    Raises:
        InputError: a setting may not be changed.
    """
    before = load_config(str(run.config), plugins=False).model_dump(mode="json")
    moves: dict[str, str] = {}
    for change in changes:
        if change.partition("=")[0] in MAY_CHANGE:
            continue
        after = load_config(str(run.config), [change], plugins=False).model_dump(mode="json")
        found = [_moved(old, new) for _, old, new in _differences(before, after)]
        if not found or None in found:
            raise InputError(
                f"{run.path} --resume with --set {change}",
                f"of a run that has begun, only these may be changed: {', '.join(MAY_CHANGE)}, and the paths of files",
                f"Leave it out, or start a new run: grouprl train {run.config} --folder … --set {change}",
            )
        moves |= {old: new for each in found if each for old, new in each.items()}
    return moves


def _moved(old: object, new: object) -> dict[str, str] | None:
    """Return the old and new folders of files whose names are unchanged; None if anything else differs."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        found = [_moved(*pair) for pair in zip(old, new, strict=True)]
        return None if None in found else {then: now for each in found if each for then, now in each.items()}
    if old == new:
        return {}
    then, now = (PLACED.fullmatch(each) if isinstance(each, str) else None for each in (old, new))
    if then is None or now is None or (then["head"], then["name"]) != (now["head"], now["name"]):
        return None
    return {then["folder"]: now["folder"]}


def made_by(run: RunFolder, changes: Sequence[str]) -> tuple[str, ...]:
    """Return the `changes` that differ from the configuration of a run."""
    before = load_config(str(run.config), plugins=False).fingerprint()
    return tuple(c for c in changes if load_config(str(run.config), [c], plugins=False).fingerprint() != before)


def kept_settings(run: RunFolder, given: Config) -> list[str]:
    """Say which settings a run resumed from a file keeps although the file (`given`) sets them differently."""
    own = load_config(str(run.config), plugins=False).model_dump(mode="json")
    said = with_absolute_paths(given).model_dump(mode="json", exclude_unset=True)
    return [f"{key} = {ours} (given: {theirs})" for key, ours, theirs in _differences(own, said)]


def _differences(own: JsonMapping, given: JsonMapping, above: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield key, own value and given value of each setting that differs; a given `auto` counts as equal."""
    for key, theirs in given.items():
        ours = own.get(key)
        if isinstance(ours, dict) and isinstance(theirs, str):
            theirs = {"name": theirs}
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _differences(ours, theirs, f"{above}{key}.")
        elif ours != theirs and theirs != "auto":
            yield f"{above}{key}", ours, theirs


def check_steps(config: Config, run: RunFolder, done: int) -> None:
    """Refuse to end a run before its current step.

    Raises:
        InputError: `steps` is lower than the number of steps done.
    """
    if config.steps < done:
        raise InputError(
            f"steps = {config.steps}, but {run.path} has made {done}",
            "a run can be extended, not cut short",
            f"Set steps to {done} or more",
        )


def said(before: Config, after: Config) -> list[str]:
    """Say what a new number of steps changes besides the length: the learning rate follows a new schedule."""
    if before.steps == after.steps or after.optim.schedule == "constant":
        return []
    return [
        f"the run has {after.steps} steps now instead of {before.steps}; optim.schedule {after.optim.schedule} follows "
        "the new number, so the learning rate changes at this point"
    ]
