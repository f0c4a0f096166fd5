"""The terms of a comparison: settings that all of its arms share, and that therefore no arm may change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from grouprl.config.sections import Run
from grouprl.core.errors import InputError
from grouprl.experiments.arms import Arm
from grouprl.experiments.budget import Budget
from grouprl.experiments.design import Ground

SOURCE = "Change it for all with --set, or make a comparison of each"
SEEDS = ("every arm has the seeds 0, 1, …", "Ask for more with --seeds")
OWN: Mapping[str, object] = {
    "run.threads": 1,
    "run.check_model": False,
    "run.folder": None,
    "run.trackers": [],
    "run.rollouts_every": 0,
}
"""Settings of a run that a comparison sets itself, and the values that it gives them."""
TERMS: Mapping[str, tuple[str, str]] = {
    "seed": SEEDS,
    "steps": ("every arm has the same budget", "Give it with --budget"),
    "task": ("every arm has the same prompts", "Name several tasks as sources"),
    "eval": ("every arm is measured alike", SOURCE),
    "warmup": ("every arm starts from the same warm-up", SOURCE),
    "model.name": ("every arm starts from the same model", SOURCE),
    **dict.fromkeys(OWN, ("a comparison sets it for every run", "Leave it out")),
}
"""The rule and the remedy by setting."""
SIZES = ("model.tiny", "model.settings")
"""Settings of a model that is built from scratch."""
WARMED = ("every arm starts from the same warmed-up model, whose size is known", "Set warmup.steps=0")
SCHEDULE = (
    "without a known last step the learning rate stays constant",
    "Use --budget steps, or set it for all with --set",
)


def refuse_overridden(changes: Sequence[str]) -> None:
    """Refuse changes of every run that would have no effect, because the comparison overrides them.

    Raises:
        InputError: it names the change, the rule and the remedy.
    """
    for change in changes:
        key = change.partition("=")[0]
        if hit := next((own for own in ("seed", *OWN) if own == key or own.startswith(f"{key}.")), None):
            rule, remedy = TERMS[hit]
            raise InputError(f"--set {change}: {hit} is overridden", rule, remedy)


def overridden(source: Ground) -> list[str]:
    """Return the settings of a source that a comparison overrides, as `key = value`."""
    given, usual = source.config().model_dump(mode="json"), Run().model_dump(mode="json")
    found = {own: _at(given, own) for own in OWN}
    return [
        f"{own} = {json.dumps(value)}"
        for own, value in found.items()
        if value not in (usual[own.partition(".")[2]], OWN[own])
    ]


def terms(source: Ground, budget: Budget) -> dict[str, tuple[str, str]]:
    """Return the rule and the remedy of each setting that the arms share on a source."""
    found = dict(TERMS)
    if source.config().warmup.steps:
        found |= dict.fromkeys(SIZES, WARMED)
    if budget.unit != "steps":
        found["optim.schedule"] = SCHEDULE
    return found


def refuse_other_terms(source: Ground, changes: Sequence[str], budget: Budget) -> None:
    """Refuse changes of an arm, or of a tuned value, to a term: they would be ignored, or the comparison be unfair.

    Raises:
        InputError: it names the setting, the rule and the remedy.
    """
    before, after = (source.config(each).model_dump(mode="json") for each in ((), changes))
    for setting, (rule, remedy) in terms(source, budget).items():
        if _at(before, setting) != _at(after, setting):
            raise InputError(f"with {' '.join(changes)} it differs from the others in {setting}", rule, remedy)


def of_other_size(source: Ground, arms: Sequence[Arm]) -> list[str]:
    """Return the labels of the arms whose model has another size than that of the source."""
    before = source.config().model_dump(mode="json")
    after = {arm.label: source.config(arm.changes).model_dump(mode="json") for arm in arms}
    return [label for label, data in after.items() if any(_at(data, size) != _at(before, size) for size in SIZES)]


def _at(data: object, setting: str) -> object:
    for name in setting.split("."):
        data = data[name] if isinstance(data, Mapping) else None
    return data
